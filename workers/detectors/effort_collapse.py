"""Effort collapses: what passes is written with far less than what passed at the beginning, and more passes."""

import statistics

from backend.domain.vocabulary import Severity
from workers.detectors.base import FlagDraft, Limits, bounded, run_detector
from workers.detectors.view import RunView, passes


def look(view: RunView, limits: Limits) -> list[FlagDraft]:
    if view.scene.success is None or not view.has_past():
        return []
    before = [figures.passing_tokens for figures in view.base() if figures.passing_tokens is not None]
    rows = [row for kept in view.recent.values() for row in kept if passes(view.scene, row)]
    rates = [statistics.fmean(figures.passing for figures in part) for part in (view.base(), view.present())]
    if not before or len(rows) < limits["fewest"] or rates[1] <= rates[0]:
        return []
    usual, now = statistics.median(before), statistics.median(row.tokens_out for row in rows)
    if usual <= 0 or now >= limits["factor"] * usual:
        return []
    last = view.steps[-1].step
    return [
        FlagDraft(
            detector=DETECTOR.id,
            key="run",
            severity=Severity.WARNING,
            score=bounded(1 - now / usual),
            sentence=f"Rollouts that pass have {now:g} tokens of the policy (median), {usual:g} at the beginning, while"
            f" the share that passes went from {rates[0]:.0%} to {rates[1]:.0%}.",
            evidence={
                "window": [view.present()[0].step, last],
                "series": {"passing tokens": [figures.passing_tokens for figures in view.steps[-60:]]},
                "rollouts": [str(row.id) for row in sorted(rows, key=lambda row: row.tokens_out)[:5]],
            },
            training_step=last,
        )
    ]


DETECTOR = run_detector("effort_collapse", look)
