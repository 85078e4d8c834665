"""What was better before: the format, or a reward column that is traded for another."""

import math

from backend.domain.training.alarms import AlarmsChoice
from workers.training.alarms.history import WINDOW, History, Stretch
from workers.training.alarms.sighting import Sighting

ERRORS = 4.0
"""How deep a fall must be: small steps are noisy, and the best of many windows flatters."""


def format_fall(history: History, choice: AlarmsChoice) -> list[Sighting]:
    best, now = history.best("format"), history.present("format")
    if best is None or now is None or not _is_fall(best, now, choice.format_drop):
        return []
    sentence = (
        f"{now.mean:.1%} of the turns of steps {now.first} to {now.last} could be parsed; it was {best.mean:.1%} in"
        f" steps {best.first} to {best.last}."
    )
    evidence = {"curve": "format", "value": now.mean, "limit": best.mean - choice.format_drop, "best": best.mean}
    return [Sighting("format_fall", sentence, best.last, {**evidence, "window": now.steps, "best_window": best.steps})]


def column_fall(history: History, choice: AlarmsChoice) -> list[Sighting]:
    """The format has an alarm of its own."""
    found = [
        _column(history, choice, name, math.copysign(1.0, weight))
        for name, weight in history.weights.items()
        if weight and name != "format"
    ]
    return [sighting for sighting in found if sighting]


def _column(history: History, choice: AlarmsChoice, name: str, sign: float) -> Sighting | None:
    curve = f"columns/{name}"
    best, now = history.best(curve, sign=sign), history.present(curve, 2 * WINDOW)
    if best is None or now is None or not _is_fall(best, now, choice.column_drop, sign):
        return None
    reward, then = history.present("reward", 2 * WINDOW), history.at("reward", best)
    if reward is None or then is None or reward.mean < then - 2 * reward.error:
        return None
    sentence = (
        f"`{name}` is {now.mean:.3f} over steps {now.first} to {now.last}; it was {best.mean:.3f} in steps {best.first}"
        f" to {best.last}. The reward went from {then:.3f} to {reward.mean:.3f} meanwhile."
    )
    evidence = {"curve": curve, "column": name, "value": now.mean, "limit": best.mean - sign * choice.column_drop}
    windows = {"best": best.mean, "window": now.steps, "best_window": best.steps}
    return Sighting("column_fall", sentence, best.last, {**evidence, **windows}, key=name)


def _is_fall(best: Stretch, now: Stretch, drop: float, sign: float = 1.0) -> bool:
    depth = sign * (best.mean - now.mean)
    return now.first > best.last and depth > max(drop, ERRORS * math.hypot(best.error, now.error))
