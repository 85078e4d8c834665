"""Rollouts with high rewards suddenly write what nothing in the run has written before."""

import statistics

from backend.domain.detectors.run_view import BASE_STEPS, RunView
from backend.domain.detectors.spec import DetectorSpec, Flags, Need, Subject, ThresholdSpec, ThresholdValues

SPEC = DetectorSpec(
    id="novel_reward",
    title="Reward for unseen text",
    description="The best rollouts suddenly contain text that no earlier rollout of the run does, and earn by it.",
    formula="novelty: share of word trigrams, numbers alike, that no rollout of an earlier step has. Mean novelty of"
    " the best quarter over 2 steps > its mean over the 10 steps before + max(0.25, 6 robust deviations), and rollouts"
    " with novelty ≥ 0.5 earn more than the others by > 3 standard errors",
    source="novelty detection, Markou and Singh 2003; a new source of reward as in CUSUM on the reward, Page 1954",
    subject=Subject.RUN,
    settings={
        "rise": ThresholdSpec(0.25, "Smallest rise of the novelty.", maximum=1),
        "deviations": ThresholdSpec(6.0, "Smallest rise in robust standard deviations."),
        "standard_errors": ThresholdSpec(3.0, "Smallest lead of novel rollouts in standard errors."),
        "fewest": ThresholdSpec(6, "Minimum number of novel rollouts."),
    },
    needs=(Need.STEPS,),
)

RECENT = 2
NOVEL = 0.5


def find(view: RunView, thresholds: ThresholdValues) -> Flags:
    if len(view.steps) < BASE_STEPS + RECENT + 1:
        return
    novelty = [figures.best_novelty for figures in view.steps]
    before, now = novelty[-BASE_STEPS - RECENT : -RECENT], novelty[-RECENT:]
    middle = statistics.median(before)
    deviation = 1.4826 * statistics.median(abs(value - middle) for value in before)
    if min(now) <= statistics.fmean(before) + max(thresholds["rise"], thresholds["deviations"] * deviation):
        return
    novel = [row for row in view.newest if view.novelty.get(row.id, 0.0) >= NOVEL]
    usual = [row.reward for row in view.newest if view.novelty.get(row.id, 0.0) < NOVEL]
    rewards = [row.reward for row in novel]
    if len(rewards) < max(2, thresholds["fewest"]) or len(usual) < 2:
        return
    lead = statistics.fmean(rewards) - statistics.fmean(usual)
    error = (statistics.variance(rewards) / len(rewards) + statistics.variance(usual) / len(usual)) ** 0.5
    if lead <= max(thresholds["standard_errors"] * error, 1e-9):
        return
    yield view.flag(
        score=0.5 + statistics.fmean(now) / 2,
        sentence=f"{statistics.fmean(now):.0%} of the best rollouts' text is new to the run,"
        f" {statistics.fmean(before):.0%} before; {len(novel)} novel rollouts earn {statistics.fmean(rewards):.3f}, the"
        f" others {statistics.fmean(usual):.3f}.",
        window=view.steps[-RECENT:],
        series={"best_novelty": novelty},
        rows=sorted(novel, key=lambda row: -row.reward),
    )
