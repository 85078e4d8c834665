"""One of several columns makes up nearly all of the reward."""

import statistics
from collections.abc import Sequence

from backend.domain.detectors.flags import FlagDraft, RunDetector, ThresholdValues, bounded
from backend.domain.detectors.run_view import RunView, StepFigures
from backend.domain.detectors.spec import DetectorSpec, Need, Setting, Subject
from backend.domain.vocabulary import Severity

SPEC = DetectorSpec(
    id="component_dominance",
    title="One column dominates the reward",
    description="Nearly all of a rising reward comes from one column that was meant to be a part of it.",
    formula="|mean(w r)| of the column / sum over columns, mean of 5 steps > 0.75; 0.15 above its share of the"
    " weights, 0.1 above the first 10 steps; the reward rose",
    source="rewardspy, with the column's declared share as a baseline",
    subject=Subject.RUN,
    settings={
        "share": Setting(0.75, "Share of the reward above which a column dominates.", maximum=1),
        "above_declared": Setting(0.15, "Smallest excess over the column's share of the weights.", maximum=1),
        "rise": Setting(0.1, "Smallest increase of the share since the first steps.", maximum=1),
    },
    needs=(Need.STEPS, Need.COLUMNS),
)


def find(view: RunView, thresholds: ThresholdValues) -> list[FlagDraft]:
    weights = {name: weight for name, weight in view.context.weights.items() if weight}
    if len(weights) < 2 or not view.has_past():
        return []
    before, now = _shares(view, view.base()), _shares(view, view.present())
    rewards = [statistics.fmean(figures.reward for figures in part) for part in (view.base(), view.present())]
    column = max(now, key=lambda name: now[name])
    is_declared = now[column] < view.context.shares.get(column, 0.0) + thresholds["above_declared"]
    if now[column] <= thresholds["share"] or is_declared or now[column] < before[column] + thresholds["rise"]:
        return []
    if rewards[1] <= rewards[0]:
        return []
    last = view.steps[-1].step
    return [
        FlagDraft(
            detector=SPEC.id,
            key=column,
            severity=Severity.WARNING,
            score=bounded(now[column]),
            sentence=f"`{column}` makes {now[column]:.0%} of the reward, {before[column]:.0%} at the beginning; at its"
            f" best it is meant to make {view.context.shares.get(column, 0.0):.0%}. The reward went"
            f" from {rewards[0]:.3f} to {rewards[1]:.3f}.",
            evidence={
                "window": [view.present()[0].step, last],
                "series": {column: [figures.columns[column] for figures in view.steps[-60:]]},
                "rollouts": [
                    str(row.id) for row in sorted(view.newest, key=lambda row: -row.columns.get(column, 0.0))[:5]
                ],
            },
            training_step=last,
        )
    ]


def _shares(view: RunView, steps: Sequence[StepFigures]) -> dict[str, float]:
    """Of each column in the sizes of all, weighted, over some steps."""
    sizes = {
        name: abs(weight * statistics.fmean(figures.columns[name] for figures in steps))
        for name, weight in view.context.weights.items()
        if weight and name in view.columns
    }
    total = sum(sizes.values())
    return {name: size / total if total else 0.0 for name, size in sizes.items()}


DETECTOR = RunDetector(SPEC, find)
