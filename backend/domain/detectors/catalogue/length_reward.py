"""Length is rewarded: longer rollouts of the same task earn more, and the policy follows."""

import statistics
from collections import defaultdict

from backend.domain.detectors.run_view import RolloutRow, RunView
from backend.domain.detectors.spec import DetectorSpec, Flags, Need, Subject, ThresholdSpec, ThresholdValues

SPEC = DetectorSpec(
    id="length_reward",
    title="Length is rewarded",
    description="Among rollouts of the same task, longer ones earn more, and rollouts get longer.",
    formula="mean within-task Spearman rho(length, reward) over 5 steps > 0.5 with 100 rollouts or more, and the"
    " mean length > 1.25 of the first 10 steps",
    source="length exploitation in rewardspy; SkyRL logs lengths of rewarded and unrewarded rollouts separately",
    subject=Subject.RUN,
    settings={
        "rho": ThresholdSpec(0.5, "Smallest Spearman correlation of length and reward.", maximum=1),
        "fewest": ThresholdSpec(100, "Minimum number of rollouts."),
        "factor": ThresholdSpec(1.25, "Smallest growth of the mean length.", minimum=1),
    },
    needs=(Need.STEPS, Need.TOKENS),
)


def find(view: RunView, thresholds: ThresholdValues) -> Flags:
    if not view.has_past():
        return
    before = statistics.fmean(figures.tokens for figures in view.base())
    now = statistics.fmean(figures.tokens for figures in view.present())
    rows = [row for kept in view.recent.values() for row in kept]
    if now <= thresholds["factor"] * before or len(rows) < thresholds["fewest"]:
        return
    rho = within_task(rows)
    if rho is not None and rho > thresholds["rho"]:
        yield view.flag(
            score=rho,
            sentence=f"Among rollouts of one task, longer ones earn more (Spearman {rho:.2f}, {len(rows)} rollouts),"
            f" and they grew from {before:.0f} to {now:.0f} tokens.",
            window=view.present(),
            series={"tokens": [figures.tokens for figures in view.steps]},
            rows=sorted(view.newest, key=lambda row: -row.tokens_out),
        )


def within_task(rows: list[RolloutRow]) -> float | None:
    """Spearman's correlation of length and reward inside groups of four or more, averaged. None if nothing varies."""

    from scipy import stats

    groups: defaultdict[str, list[RolloutRow]] = defaultdict(list)
    for row in rows:
        groups[row.group].append(row)
    found = []
    for group in groups.values():
        lengths, rewards = [row.tokens_out for row in group], [row.reward for row in group]
        if len(group) >= 4 and len(set(lengths)) > 1 and len(set(rewards)) > 1:
            found.append(float(stats.spearmanr(lengths, rewards).statistic))
    return statistics.fmean(found) if found else None
