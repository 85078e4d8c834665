"""One column of several becomes the reward: what was meant to be a part is all that is earned."""

import statistics
from collections.abc import Sequence

from backend.domain.vocabulary import Severity
from workers.detectors.base import FlagDraft, Limits, bounded, run_detector
from workers.detectors.view import RunView, StepFigures


def look(view: RunView, limits: Limits) -> list[FlagDraft]:
    weights = {name: weight for name, weight in view.scene.weights.items() if weight}
    if len(weights) < 2 or not view.has_past():
        return []
    before, now = _shares(view, view.base()), _shares(view, view.present())
    rewards = [statistics.fmean(figures.reward for figures in part) for part in (view.base(), view.present())]
    column = max(now, key=lambda name: now[name])
    is_declared = now[column] < view.scene.shares.get(column, 0.0) + limits["above_declared"]
    if now[column] <= limits["share"] or is_declared or now[column] < before[column] + limits["rise"]:
        return []
    if rewards[1] <= rewards[0]:
        return []
    last = view.steps[-1].step
    return [
        FlagDraft(
            detector=DETECTOR.id,
            key=column,
            severity=Severity.WARNING,
            score=bounded(now[column]),
            sentence=f"`{column}` makes {now[column]:.0%} of the reward, {before[column]:.0%} at the beginning; at its"
            f" best it is meant to make {view.scene.shares.get(column, 0.0):.0%}. The reward went from {rewards[0]:.3f}"
            f" to {rewards[1]:.3f}.",
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
        for name, weight in view.scene.weights.items()
        if weight and name in view.columns
    }
    total = sum(sizes.values())
    return {name: size / total if total else 0.0 for name, size in sizes.items()}


DETECTOR = run_detector("component_dominance", look)
