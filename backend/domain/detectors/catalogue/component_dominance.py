"""One of several columns makes up nearly all of the reward."""

import statistics
from collections.abc import Sequence

from backend.domain.detectors.run_view import RunView, StepFigures
from backend.domain.detectors.spec import DetectorSpec, Flags, Need, Subject, ThresholdSpec, ThresholdValues

SPEC = DetectorSpec(
    id="component_dominance",
    title="One column dominates the reward",
    description="Nearly all of a rising reward comes from one column that was meant to be a part of it.",
    formula="|mean(w r)| of the column / sum over columns, mean of 5 steps > 0.75; 0.15 above its share of the"
    " weights, 0.1 above the first 10 steps; the reward rose",
    source="rewardspy, with the column's declared share as a baseline",
    subject=Subject.RUN,
    settings={
        "share": ThresholdSpec(0.75, "Share of the reward above which a column dominates.", maximum=1),
        "above_declared": ThresholdSpec(0.15, "Smallest excess over the column's share of the weights.", maximum=1),
        "rise": ThresholdSpec(0.1, "Smallest increase of the share since the first steps.", maximum=1),
    },
    needs=(Need.STEPS, Need.COLUMNS),
)


def find(view: RunView, thresholds: ThresholdValues) -> Flags:
    weights = {name: weight for name, weight in view.context.weights.items() if weight}
    if len(weights) < 2 or not view.has_past():
        return
    before, now = _shares(view, view.base()), _shares(view, view.present())
    rewards = [statistics.fmean(figures.reward for figures in part) for part in (view.base(), view.present())]
    column = max(now, key=lambda name: now[name])
    declared = view.context.shares.get(column, 0.0)
    if (
        now[column] > thresholds["share"]
        and now[column] >= declared + thresholds["above_declared"]
        and now[column] >= before[column] + thresholds["rise"]
        and rewards[1] > rewards[0]
    ):
        yield view.flag(
            key=column,
            score=now[column],
            sentence=f"`{column}` makes up {now[column]:.0%} of the reward, {before[column]:.0%} at the beginning; its"
            f" largest intended share is {declared:.0%}. The reward went from {rewards[0]:.3f} to {rewards[1]:.3f}.",
            window=view.present(),
            series={column: [figures.columns[column] for figures in view.steps]},
            rows=sorted(view.newest, key=lambda row: -row.columns.get(column, 0.0)),
        )


def _shares(view: RunView, steps: Sequence[StepFigures]) -> dict[str, float]:
    """Share of each weighted column in the sum of their sizes, over some steps."""
    sizes = {
        name: abs(weight * statistics.fmean(figures.columns[name] for figures in steps))
        for name, weight in view.context.weights.items()
        if weight and name in view.context.columns
    }
    total = sum(sizes.values())
    return {name: size / total if total else 0.0 for name, size in sizes.items()}
