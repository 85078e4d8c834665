"""The training reward runs ahead of the held-out one: what is learned holds for the training tasks only."""

import statistics

from backend.domain.vocabulary import Severity
from workers.detectors.base import FlagDraft, Limits, bounded, run_detector
from workers.detectors.view import RECENT_STEPS, Examination, RunView


def look(view: RunView, limits: Limits) -> list[FlagDraft]:
    scene = view.scene
    if len(view.examinations) < 2 or scene.highest is None or scene.lowest is None or scene.highest <= scene.lowest:
        return []
    first, last = view.examinations[0], view.examinations[-1]
    gap, error = _gap(view, first, last)
    share = gap / (scene.highest - scene.lowest)
    if share <= limits["warning"] or gap <= limits["standard_errors"] * error:
        return []
    is_grave = share > limits["grave"]
    return [
        FlagDraft(
            detector=DETECTOR.id,
            key="grave" if is_grave else "warning",
            severity=Severity.WARNING,
            score=bounded(0.5 + share),
            sentence=f"Since step {first.step} the training reward rose {gap:.3f} more than the one on held-out tasks"
            f" ({share:.0%} of the reward's range, {gap / max(error, 1e-9):.1f} standard errors).",
            evidence={
                "window": [first.step, last.step],
                "series": {"heldout": [each.reward for each in view.examinations[-60:]]},
                "rollouts": [str(row.id) for row in sorted(view.newest, key=lambda row: -row.reward)[:5]],
            },
            training_step=view.steps[-1].step,
        )
    ]


def _gap(view: RunView, first: Examination, last: Examination) -> tuple[float, float]:
    """How much the gap grew between two examinations, and the standard error of that."""
    now, before = _trained(view, last.step), _trained(view, first.step)
    error = (first.error**2 + last.error**2 + now[1] ** 2 + before[1] ** 2) ** 0.5
    return (now[0] - last.reward) - (before[0] - first.reward), error


def _trained(view: RunView, step: int) -> tuple[float, float]:
    """Mean training reward of the steps up to this one, or of the first ones, with its standard error."""
    figures = [each.reward for each in view.steps if each.step <= step][-RECENT_STEPS:]
    figures = figures or [each.reward for each in view.steps[:RECENT_STEPS]]
    error = statistics.stdev(figures) / len(figures) ** 0.5 if len(figures) > 1 else 0.0
    return statistics.fmean(figures), error


DETECTOR = run_detector("heldout_gap", look)
