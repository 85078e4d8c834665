"""The training reward grows faster than the held-out reward: the policy does not generalize."""

import statistics

from backend.domain.detectors.run_view import RECENT_STEPS, RunView
from backend.domain.detectors.spec import DetectorSpec, Flags, Need, Subject, ThresholdSpec, ThresholdValues

SPEC = DetectorSpec(
    id="heldout_gap",
    title="Gap to held-out tasks",
    description="The training reward grows faster than the reward on held-out tasks.",
    formula="(mean of 5 training steps - held-out mean) - the same at the first held-out evaluation, as a share of the"
    " reward's range: > 0.05 and > 3 standard errors; raised again from 0.1",
    source="gap rules of the Azure Foundry guide to reinforcement fine-tuning",
    subject=Subject.RUN,
    settings={
        "warning": ThresholdSpec(0.05, "Gap, as a share of the reward range, that raises a flag."),
        "grave": ThresholdSpec(0.1, "Gap that raises a second flag."),
        "standard_errors": ThresholdSpec(3.0, "Smallest gap in standard errors."),
    },
    needs=(Need.STEPS, Need.HELDOUT, Need.CEILING),
)


def find(view: RunView, thresholds: ThresholdValues) -> Flags:
    context = view.context
    if len(view.heldout) < 2 or context.highest is None or context.lowest is None or context.highest <= context.lowest:
        return
    first, last = view.heldout[0], view.heldout[-1]
    now, now_error = _trained(view, last.step)
    before, before_error = _trained(view, first.step)
    gap = (now - last.reward) - (before - first.reward)
    error = (first.error**2 + last.error**2 + now_error**2 + before_error**2) ** 0.5
    share = gap / (context.highest - context.lowest)
    if share <= thresholds["warning"] or gap <= thresholds["standard_errors"] * error:
        return
    yield view.flag(
        key="grave" if share > thresholds["grave"] else "warning",
        score=0.5 + share,
        sentence=f"Since step {first.step} the training reward rose {gap:.3f} more than the one on held-out tasks"
        f" ({share:.0%} of the reward's range, {gap / max(error, 1e-9):.1f} standard errors).",
        series={"heldout": [each.reward for each in view.heldout]},
        rows=sorted(view.newest, key=lambda row: -row.reward),
        window=[first, last],
    )


def _trained(view: RunView, step: int) -> tuple[float, float]:
    """Mean training reward of the steps up to this one, or of the first ones, with its standard error."""
    rewards = [each.reward for each in view.steps if each.step <= step][-RECENT_STEPS:]
    rewards = rewards or [each.reward for each in view.steps[:RECENT_STEPS]]
    error = statistics.stdev(rewards) / len(rewards) ** 0.5 if len(rewards) > 1 else 0.0
    return statistics.fmean(rewards), error
