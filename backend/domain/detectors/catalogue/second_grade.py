"""A high reward that a second grade of the same rollout contradicts."""

import uuid
from collections.abc import Mapping, Sequence

from backend.domain.detectors.run_view import Batch, RolloutRow
from backend.domain.detectors.spec import DetectorSpec, Flags, Need, ThresholdSpec, ThresholdValues

SPEC = DetectorSpec(
    id="second_grade",
    title="Second grade contradicts the reward",
    description="The rollout earned a high reward, and a second grader or an oracle gives it a low grade.",
    formula="R ≥ 0.6 of its range, or ≥ 0.3 and above the 90% quantile of rollouts with a second grade ≥ 0.7; second"
    " grade ≤ 0.3, and 0.4 below R's share of its range (0.2 in the second case). Flagged if such rollouts are 5 times"
    " as many as those with a low R and a high second grade (p < 0.01 of a one-sided sign test, or none of the latter"
    " in 20), or if Spearman's rho of R and second grade in 20 rollouts is < 0.2: R does not measure the same",
    source="proxy and gold reward, Gao et al. 2022; a noisy second grader errs both ways: McNemar 1947",
    settings={
        "reward": ThresholdSpec(0.6, "Smallest share of the reward's range that counts as high.", maximum=1),
        "grade": ThresholdSpec(0.3, "Largest second grade that counts as low.", maximum=1),
        "gap": ThresholdSpec(0.4, "Smallest difference of the two.", maximum=1),
        "times": ThresholdSpec(5, "Smallest ratio to the rollouts that the two grade the other way around."),
        "rho": ThresholdSpec(0.2, "Rank correlation of the two below which that ratio does not matter.", maximum=1),
    },
    needs=(Need.SECOND_GRADE,),
)

ACCEPTED = 0.7
"""Second grade of an accepted rollout."""
FEWEST = 5
CERTAIN = 20
"""Graded rollouts without a reverse disagreement, from which single ones are flagged."""


def find(batch: Batch, thresholds: ThresholdValues) -> Flags:
    import numpy as np
    from scipy import stats

    context = batch.context
    grades = {row.id: grade for row in batch.rows if (grade := row.second_grade(context)) is not None}
    graded = [row for row in batch.rows if row.id in grades]
    if not graded:
        return
    scale = max(1.0, *grades.values())  # grades from 0 to 10 or 100
    low = context.lowest if context.lowest is not None else min(0.0, *(row.reward for row in graded))
    high = context.highest if context.highest is not None else max(row.reward for row in graded)
    if high <= low:
        return
    accepted = [row.reward for row in graded if grades[row.id] / scale >= ACCEPTED]
    usual = float(np.quantile(accepted, 0.9)) if len(accepted) >= FEWEST else np.inf
    found, reverse = [], 0
    for row in graded:
        share, grade = (row.reward - low) / (high - low), grades[row.id] / scale
        reverse += grade >= ACCEPTED and share <= 1 - thresholds["reward"] and grade - share >= thresholds["gap"]
        is_high = share >= thresholds["reward"] and share - grade >= thresholds["gap"]
        is_best = row.reward > usual and share >= thresholds["reward"] / 2 and share - grade >= thresholds["gap"] / 2
        if (is_high or is_best) and grade <= thresholds["grade"]:
            found.append((row, share, grade))
    p = float(stats.binom.sf(len(found) - 1, len(found) + reverse, 0.5)) if found else 1.0
    is_one_sided = len(found) >= thresholds["times"] * reverse and (
        (len(found) >= FEWEST and p < 0.01) or (reverse == 0 and len(graded) >= CERTAIN)
    )
    if not found or not (is_one_sided or _is_unrelated(graded, grades, thresholds["rho"])):
        return
    for row, share, grade in found:
        yield row.flag(
            score=min(1.0, 0.5 + max(share - grade, 0.0) / 2),
            sentence=f"It earned {row.reward:.3f} ({share:.0%} of the range), and a second grade is {grade:.2f}."
            f" {len(found)} of {len(graded)} rollouts of its batch are so, {reverse} the other way around.",
            marks=row.mark_reply(),
            cluster="second grade contradicts the reward",
            second_grade=grade,
        )


def _is_unrelated(rows: Sequence[RolloutRow], grades: Mapping[uuid.UUID, float], rho: float) -> bool:
    """Whether rewards and second grades both vary, and hardly together."""

    from scipy import stats

    rewards, second = [row.reward for row in rows], [grades[row.id] for row in rows]
    if len(rows) < CERTAIN or len(set(rewards)) < 2 or len(set(second)) < 2:
        return False
    return float(stats.spearmanr(rewards, second).statistic) < rho
