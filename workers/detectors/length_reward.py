"""Length pays: among rollouts of the same task the longer ones earn more, and the policy follows."""

import statistics
from collections import defaultdict

from scipy import stats

from backend.domain.vocabulary import Severity
from workers.detectors.base import FlagDraft, Limits, bounded, run_detector
from workers.detectors.view import RolloutRow, RunView

FEWEST_OF_A_TASK = 4


def look(view: RunView, limits: Limits) -> list[FlagDraft]:
    if not view.has_past():
        return []
    before = statistics.fmean(figures.tokens for figures in view.base())
    now = statistics.fmean(figures.tokens for figures in view.present())
    rows = [row for kept in view.recent.values() for row in kept]
    if now <= limits["factor"] * before or len(rows) < limits["fewest"]:
        return []
    rho = within_task(rows)
    if rho is None or rho <= limits["rho"]:
        return []
    last = view.steps[-1].step
    return [
        FlagDraft(
            detector=DETECTOR.id,
            key="run",
            severity=Severity.WARNING,
            score=bounded(rho),
            sentence=f"Among rollouts of one task, longer ones earn more (Spearman {rho:.2f}, {len(rows)} rollouts),"
            f" and they grew from {before:.0f} to {now:.0f} tokens.",
            evidence={
                "window": [view.present()[0].step, last],
                "series": {"tokens": [figures.tokens for figures in view.steps[-60:]]},
                "rollouts": [str(row.id) for row in sorted(view.newest, key=lambda row: -row.tokens_out)[:5]],
            },
            training_step=last,
        )
    ]


def within_task(rows: list[RolloutRow]) -> float | None:
    """Spearman's correlation of length and reward inside the groups, averaged; None where nothing varies."""
    groups: defaultdict[str, list[RolloutRow]] = defaultdict(list)
    for row in rows:
        groups[row.group].append(row)
    found = []
    for group in groups.values():
        lengths, rewards = [row.tokens_out for row in group], [row.reward for row in group]
        if len(group) >= FEWEST_OF_A_TASK and len(set(lengths)) > 1 and len(set(rewards)) > 1:
            found.append(float(stats.spearmanr(lengths, rewards).statistic))
    return statistics.fmean(found) if found else None


DETECTOR = run_detector("length_reward", look)
