"""Curves of training runs as a study of tic-tac-toe reported them, with the noise that 320 episodes a step have."""

import math
import random
from collections.abc import Iterator, Mapping

from backend.domain.training.alarms import AlarmsChoice
from workers.training.alarms import AlarmWatch, CurveHistory, Sighting

WEIGHTS = {"win": 1.0, "format": 0.2, "invalid_move": 0.1}
EPISODES = 320
TURNS = 4

Points = Mapping[int, float]
"""Step → value; in between the curve is straight."""

SOUND: dict[str, Points] = {
    "win": {0: 0.34, 60: 0.62, 120: 0.66, 240: 0.69, 480: 0.7},
    "format": {0: 0.996, 480: 0.993},
    "invalid": {0: 0.046, 60: 0.131, 120: 0.095, 180: 0.049, 240: 0.042, 480: 0.033},
    "entropy": {0: 0.5, 60: 0.4, 480: 0.15},
    "no_variance": {0: 0.1, 480: 0.5},
    "length": {0: 21, 60: 20, 480: 18},
    "grad_norm": {0: 0.4, 480: 0.3},
    "divergence": {0: 0.0, 60: 0.06, 480: 0.2},
    "truncated": {0: 0.0},
    "ratio": {0: 1.0},
    "low_clip": {0: 0.0},
    "high_clip": {0: 0.0},
}
"""f0: no collapse. Values that the study did not record (entropy, length, norms, ratios …) are made up and calm."""


def steps_of(changes: Mapping[str, Points], steps: int, *, seed: int = 0) -> Iterator[tuple[int, dict[str, float]]]:
    """Each step's figures: those of the sound run with some curves replaced."""
    chance = random.Random(seed)
    curves = {**SOUND, **changes}
    for step in range(1, steps + 1):
        exact = {name: at(points, step) for name, points in curves.items()}
        win = exact["win"] + chance.gauss(0, 0.45 / math.sqrt(EPISODES))
        readable = _share(chance, exact["format"], EPISODES * TURNS)
        invalid = -_share(chance, exact["invalid"], EPISODES)
        yield (
            step,
            {
                "reward": win + 0.2 * readable + 0.1 * invalid,
                "columns/win": win,
                "columns/format": readable,
                "columns/invalid_move": invalid,
                "format": readable,
                "entropy": exact["entropy"] * chance.uniform(0.9, 1.1),
                "completions/mean_length": exact["length"] * chance.uniform(0.97, 1.03),
                "completions/truncated": exact["truncated"],
                "groups/no_variance": _share(chance, exact["no_variance"], 40),
                "rollouts/failed": 0.0,
                "divergence": exact["divergence"] * chance.uniform(0.8, 1.2),
                "loss": chance.gauss(0, 0.01),
                "grad_norm": exact["grad_norm"] * chance.lognormvariate(0, 0.3),
                "ratio/mean": exact["ratio"],
                "ratio/low_clip": exact["low_clip"],
                "ratio/high_clip": exact["high_clip"],
            },
        )


def at(points: Points, step: int) -> float:
    """On the straight line between the given points; level after the last."""
    before = max((known for known in points if known <= step), default=min(points))
    after = min((known for known in points if known >= step), default=max(points))
    if before == after:
        return points[before]
    return points[before] + (points[after] - points[before]) * (step - before) / (after - before)


def replay(
    changes: Mapping[str, Points], steps: int, choice: AlarmsChoice | None = None, *, seed: int = 0
) -> list[tuple[int, Sighting]]:
    """The alarms of the watch, with the step of each."""
    watch = AlarmWatch(CurveHistory(WEIGHTS, EPISODES))
    choice = choice or AlarmsChoice()
    return [
        (step, sighting)
        for step, figures in steps_of(changes, steps, seed=seed)
        for sighting in watch.check(step, figures, choice)[0]
    ]


def _share(chance: random.Random, share: float, count: int) -> float:
    noisy = chance.gauss(share, math.sqrt(max(share * (1 - share), 0.0) / count))
    return min(1.0, max(0.0, noisy))
