"""The training reward grows faster than the held-out reward: the policy does not generalize."""

import statistics

from backend.domain.detectors.flags import FlagDraft, RunDetector, ThresholdValues, bounded
from backend.domain.detectors.run_view import RECENT_STEPS, HeldoutResult, RunView
from backend.domain.detectors.spec import DetectorSpec, Need, Setting, Subject
from backend.domain.vocabulary import Severity

SPEC = DetectorSpec(
    id="heldout_gap",
    title="Gap to held-out tasks",
    description="The training reward grows faster than the reward on held-out tasks.",
    formula="(mean of 5 training steps - held-out mean) - the same at the first held-out evaluation, as a share of the"
    " reward's range: > 0.05 and > 3 standard errors; raised again from 0.1",
    source="gap rules of the Azure Foundry guide to reinforcement fine-tuning",
    subject=Subject.RUN,
    settings={
        "warning": Setting(0.05, "Gap, as a share of the reward range, that raises a flag."),
        "grave": Setting(0.1, "Gap that raises a second flag."),
        "standard_errors": Setting(3.0, "Smallest gap in standard errors."),
    },
    needs=(Need.STEPS, Need.HELDOUT, Need.CEILING),
)


def find(view: RunView, thresholds: ThresholdValues) -> list[FlagDraft]:
    context = view.context
    if len(view.heldout) < 2 or context.highest is None or context.lowest is None or context.highest <= context.lowest:
        return []
    first, last = view.heldout[0], view.heldout[-1]
    gap, error = _gap(view, first, last)
    share = gap / (context.highest - context.lowest)
    if share <= thresholds["warning"] or gap <= thresholds["standard_errors"] * error:
        return []
    is_grave = share > thresholds["grave"]
    return [
        FlagDraft(
            detector=SPEC.id,
            key="grave" if is_grave else "warning",
            severity=Severity.WARNING,
            score=bounded(0.5 + share),
            sentence=f"Since step {first.step} the training reward rose {gap:.3f} more than the one on held-out tasks"
            f" ({share:.0%} of the reward's range, {gap / max(error, 1e-9):.1f} standard errors).",
            evidence={
                "window": [first.step, last.step],
                "series": {"heldout": [each.reward for each in view.heldout[-60:]]},
                "rollouts": [str(row.id) for row in sorted(view.newest, key=lambda row: -row.reward)[:5]],
            },
            training_step=view.steps[-1].step,
        )
    ]


def _gap(view: RunView, first: HeldoutResult, last: HeldoutResult) -> tuple[float, float]:
    """How much the gap grew between two heldout, and the standard error of that."""
    now, before = _trained(view, last.step), _trained(view, first.step)
    error = (first.error**2 + last.error**2 + now[1] ** 2 + before[1] ** 2) ** 0.5
    return (now[0] - last.reward) - (before[0] - first.reward), error


def _trained(view: RunView, step: int) -> tuple[float, float]:
    """Mean training reward of the steps up to this one, or of the first ones, with its standard error."""
    figures = [each.reward for each in view.steps if each.step <= step][-RECENT_STEPS:]
    figures = figures or [each.reward for each in view.steps[:RECENT_STEPS]]
    error = statistics.stdev(figures) / len(figures) ** 0.5 if len(figures) > 1 else 0.0
    return statistics.fmean(figures), error


DETECTOR = RunDetector(SPEC, find)
