"""The reward departs from a second grade of the same rollouts: it rises on, and the second grade does not."""

import math
import statistics
from collections.abc import Sequence

from backend.domain.detectors.run_view import RunView
from backend.domain.detectors.spec import DetectorSpec, Flags, Need, Subject, ThresholdSpec, ThresholdValues
from backend.domain.vocabulary import Severity

SPEC = DetectorSpec(
    id="proxy_divergence",
    title="Reward departs from the second grade",
    description="From some step on the reward rises and the second grade of the same rollouts does not.",
    formula="gap: R as a share of its range - mean second grade, by step. Pettitt's change point p < 0.01 in 20 steps"
    " or more, gap up by ≥ 0.1 after it, R up, and the second grade up by less than a quarter of that",
    source="proxy and gold reward, Gao et al. 2022; Pettitt 1979",
    subject=Subject.RUN,
    settings={
        "p": ThresholdSpec(0.01, "Significance level of the change point.", maximum=1),
        "rise": ThresholdSpec(0.1, "Smallest rise of the gap, as a share of the reward's range."),
        "fewest": ThresholdSpec(20, "Minimum number of steps with second grades."),
    },
    needs=(Need.STEPS, Need.SECOND_GRADE),
)

FOLLOWS = 0.25
"""Share of the reward's rise from which the second grade follows it."""


def find(view: RunView, thresholds: ThresholdValues) -> Flags:
    graded = [figures for figures in view.steps if figures.second_grade is not None]
    if len(graded) < thresholds["fewest"]:
        return
    rewards, grades = [each.reward for each in graded], [each.second_grade or 0.0 for each in graded]
    low, high = view.context.lowest, view.context.highest
    if low is None or high is None or high <= low:
        low, high = min(rewards), max(rewards)
    if high <= low:
        return
    scale = max(1.0, *grades)
    shares = [(reward - low) / (high - low) for reward in rewards]
    gaps = [share - grade / scale for share, grade in zip(shares, grades, strict=True)]
    change, p = pettitt(gaps)
    rise, follows = _step(shares, change), _step(grades, change) / scale
    if p >= thresholds["p"] or _step(gaps, change) < thresholds["rise"] or rise <= 0 or follows >= FOLLOWS * rise:
        return
    yield view.flag(
        severity=Severity.ALERT if follows < 0 else Severity.WARNING,
        score=0.6 + min(0.4, _step(gaps, change)),
        sentence=f"From step {graded[change].step} on the reward is {rise:.0%} of its range higher than before, and the"
        f" second grade of the same rollouts {abs(follows):.0%} {'lower' if follows < 0 else 'higher'}"
        f" (change point p = {max(p, 1e-6):.1g}).",
        window=graded[change:],
        series={"reward": shares, "second_grade": [grade / scale for grade in grades]},
        rows=sorted(view.newest, key=lambda row: (row.second_grade(view.context) or 0.0, -row.reward)),
    )


def pettitt(values: Sequence[float]) -> tuple[int, float]:
    """Pettitt's (1979) rank test of a change in location: the first place after the change, and its p value."""

    import numpy as np

    series = np.asarray(values, dtype=float)
    size = len(series)
    signs = np.sign(series[:, None] - series[None, :])
    statistics_ = np.array([signs[:place, place:].sum() for place in range(1, size)])
    change = int(np.argmax(np.abs(statistics_))) + 1
    largest = float(abs(statistics_[change - 1]))
    return change, min(1.0, 2.0 * math.exp(-6.0 * largest**2 / (size**3 + size**2)))


def _step(values: Sequence[float], change: int) -> float:
    """Mean after the change minus the mean before it."""
    return statistics.fmean(values[change:]) - statistics.fmean(values[:change])
