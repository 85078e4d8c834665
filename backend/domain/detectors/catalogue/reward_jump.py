"""The reward jumps: it leaves its own trend upwards within a few steps, as when a policy finds a trick."""

import itertools
import math
import operator
import statistics
from collections.abc import Sequence

from backend.domain.detectors.run_view import RunView
from backend.domain.detectors.spec import DetectorSpec, Flags, Need, Subject, ThresholdSpec, ThresholdValues
from backend.domain.vocabulary import Severity

SPEC = DetectorSpec(
    id="reward_jump",
    title="Reward jump",
    description="The mean reward rises above its own trend within a few steps.",
    formula="S = max(0, S + z - 0.5), z: standardized error of a one-step forecast from the line through 12 steps",
    source="Two-sided CUSUM on the step reward as in rewardspy; Page 1954. Here on forecast errors, so that steady"
    " learning raises no flag.",
    subject=Subject.RUN,
    settings={
        "cusum": ThresholdSpec(6.0, "CUSUM value above which the jump is flagged."),
        "smallest_jump": ThresholdSpec(0.15, "Smallest jump, as a share of the reward before it."),
    },
    needs=(Need.STEPS,),
)

WINDOW = 12
"""Steps that the trend is fitted to."""
_FORECAST = tuple(1 / WINDOW + 3 * (2 * at - WINDOW + 1) / (WINDOW * (WINDOW - 1)) for at in range(WINDOW))
"""Weights of the steps in the forecast of the next one: the least-squares line through them, one step ahead."""


def find(view: RunView, thresholds: ThresholdValues) -> Flags:
    rewards = [figures.reward for figures in view.steps]
    limit = thresholds["cusum"]
    sums = cusum(rewards, limit)
    if not sums or sums[-1] <= limit or sums[-2:][0] > limit:
        return  # flagged only in the step in which the limit is crossed
    onset = len(sums) - 1
    while onset > 0 and sums[onset - 1] > 0:
        onset -= 1
    before = statistics.fmean(rewards[max(0, onset - WINDOW) : onset])
    now = statistics.fmean(rewards[-2:])
    if now - before < thresholds["smallest_jump"] * max(abs(before), max(map(abs, rewards)) / 2):
        return
    first, last = view.steps[onset].step, view.steps[-1].step
    yield view.flag(
        key=f"step-{last}",
        severity=Severity.ALERT if sums[-1] > 2 * limit else Severity.WARNING,
        score=sums[-1] / (2 * limit),
        sentence=f"The mean reward jumped from {before:.3f} to {now:.3f} between steps {first} and {last},"
        f" faster than its trend (CUSUM {sums[-1]:.1f}, limit {limit:g}).",
        window=view.steps[onset:],
        series={"reward": rewards[-3 * WINDOW :]},
        rows=sorted(view.newest, key=lambda row: -row.reward),
    )


def cusum(rewards: Sequence[float], limit: float = SPEC.thresholds["cusum"]) -> list[float]:
    """S = max(0, S + z - 0.5) over the standardized errors of one-step forecasts from the least-squares line before."""
    sums: list[float] = [0.0] * min(len(rewards), WINDOW)
    errors: list[float] = []
    for now in range(WINDOW, len(rewards)):
        error = rewards[now] - sum(map(operator.mul, _FORECAST, rewards[now - WINDOW : now]))
        # robust spread of the forecast errors so far; while there are few, of the differences between steps
        known = errors[-3 * WINDOW :]
        if len(known) < WINDOW // 2:
            known = [after - before for before, after in itertools.pairwise(rewards[:now])]
        deviation = 1.4826 * statistics.median(map(abs, known))
        spread = max(deviation, 0.005 * max(map(abs, rewards[:now])), 1e-9) * math.sqrt(1 + 4 / WINDOW)
        sums.append(max(0.0, sums[-1] + min(error / spread, limit) - 0.5))
        errors.append(error)
    return sums
