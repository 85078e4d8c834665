"""Effort collapses: what passes is written with far less than what passed at the beginning, and more passes."""

import statistics

from backend.domain.detectors.run_view import RunView
from backend.domain.detectors.spec import DetectorSpec, Flags, Need, Subject, ThresholdSpec, ThresholdValues

SPEC = DetectorSpec(
    id="effort_collapse",
    title="Effort collapse",
    description="Passing rollouts are far shorter than passing rollouts of the first steps.",
    formula="median tokens of passing rollouts over 5 steps / the same over the first 10 < 0.5, while more pass",
    source="the cheap relative of TRACE, arXiv:2510.01367",
    subject=Subject.RUN,
    settings={
        "factor": ThresholdSpec(0.5, "Ratio of the median lengths below which a flag is raised.", maximum=1),
        "fewest": ThresholdSpec(16, "Minimum number of passing rollouts."),
    },
    needs=(Need.STEPS, Need.TOKENS),
)


def find(view: RunView, thresholds: ThresholdValues) -> Flags:
    if view.context.success is None or not view.has_past():
        return
    before = [figures.passing_tokens for figures in view.base() if figures.passing_tokens is not None]
    rows = [row for kept in view.recent.values() for row in kept if row.meets(view.context.success)]
    rates = [statistics.fmean(figures.passing for figures in part) for part in (view.base(), view.present())]
    if not before or len(rows) < thresholds["fewest"] or rates[1] <= rates[0]:
        return
    usual, now = statistics.median(before), statistics.median(row.tokens_out for row in rows)
    if usual > 0 and now < thresholds["factor"] * usual:
        yield view.flag(
            score=1 - now / usual,
            sentence=f"Passing rollouts have a median of {now:g} tokens, {usual:g} at the beginning, while the share"
            f" that passes went from {rates[0]:.0%} to {rates[1]:.0%}.",
            window=view.present(),
            series={"passing tokens": [figures.passing_tokens for figures in view.steps]},
            rows=sorted(rows, key=lambda row: row.tokens_out),
        )
