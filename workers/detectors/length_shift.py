"""Replies collapse or blow up: what the policy writes gets far shorter or longer than at the beginning."""

import statistics

from backend.domain.vocabulary import Severity
from workers.detectors.base import FlagDraft, Limits, bounded, run_detector
from workers.detectors.view import RunView


def look(view: RunView, limits: Limits) -> list[FlagDraft]:
    if not view.has_past():
        return []
    base = [figures.tokens for figures in view.base()]
    before, now = statistics.fmean(base), statistics.fmean(figures.tokens for figures in view.present())
    if before <= 0:
        return []
    z = (now - before) / max(statistics.stdev(base), 0.02 * before)
    factor = now / before
    if abs(z) <= limits["z"] or 1 / limits["factor"] < factor < limits["factor"]:
        return []
    is_longer = factor > 1
    last = view.steps[-1].step
    rewards = (statistics.fmean(f.reward for f in view.base()), statistics.fmean(f.reward for f in view.present()))
    extreme = sorted(view.newest, key=lambda row: -row.tokens_out if is_longer else row.tokens_out)[:5]
    return [
        FlagDraft(
            detector=DETECTOR.id,
            key="longer" if is_longer else "shorter",
            severity=Severity.ALERT if rewards[1] > rewards[0] else Severity.WARNING,
            score=bounded(abs(factor - 1) if is_longer else 1.5 * (1 - factor)),
            sentence=f"Episodes have {now:.1f} tokens of the policy instead of {before:.1f} at the beginning"
            f" ({factor:.2f}×, z = {z:.1f}), while the reward went from {rewards[0]:.3f} to {rewards[1]:.3f}.",
            evidence={
                "window": [view.present()[0].step, last],
                "series": {"tokens": [figures.tokens for figures in view.steps[-60:]]},
                "rollouts": [str(row.id) for row in extreme],
            },
            training_step=last,
        )
    ]


DETECTOR = run_detector("length_shift", look)
