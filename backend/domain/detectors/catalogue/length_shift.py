"""Replies collapse or blow up: what the policy writes gets far shorter or longer than at the beginning."""

import statistics

from backend.domain.detectors.run_view import RunView
from backend.domain.detectors.spec import DetectorSpec, Flags, Need, Subject, ThresholdSpec, ThresholdValues
from backend.domain.vocabulary import Severity

SPEC = DetectorSpec(
    id="length_shift",
    title="Reply length shift",
    description="Episodes get far shorter or longer than in the first steps.",
    formula="|z| > 3 of the mean of 5 steps against the first 10, and a factor of 1.6 or more",
    source="length exploitation in rewardspy",
    subject=Subject.RUN,
    settings={
        "z": ThresholdSpec(3.0, "Smallest z score of the change."),
        "factor": ThresholdSpec(1.6, "Smallest ratio between the two mean lengths.", minimum=1),
    },
    needs=(Need.STEPS, Need.TOKENS),
)


def find(view: RunView, thresholds: ThresholdValues) -> Flags:
    if not view.has_past():
        return
    base = [figures.tokens for figures in view.base()]
    before, now = statistics.fmean(base), statistics.fmean(figures.tokens for figures in view.present())
    if before <= 0:
        return
    z = (now - before) / max(statistics.stdev(base), 0.02 * before)
    factor = now / before
    if abs(z) <= thresholds["z"] or 1 / thresholds["factor"] < factor < thresholds["factor"]:
        return
    is_longer = factor > 1
    rewards = [statistics.fmean(figures.reward for figures in part) for part in (view.base(), view.present())]
    yield view.flag(
        key="longer" if is_longer else "shorter",
        severity=Severity.ALERT if rewards[1] > rewards[0] else Severity.WARNING,
        score=abs(factor - 1) if is_longer else 1.5 * (1 - factor),
        sentence=f"Episodes have {now:.1f} tokens of the policy instead of {before:.1f} at the beginning"
        f" ({factor:.2f}×, z = {z:.1f}), while the reward went from {rewards[0]:.3f} to {rewards[1]:.3f}.",
        window=view.present(),
        series={"tokens": [figures.tokens for figures in view.steps]},
        rows=sorted(view.newest, key=lambda row: row.tokens_out, reverse=is_longer),
    )
