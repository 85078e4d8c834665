"""Two runs on the same tasks and seeds: paired differences per reward column, and which tasks got better or worse."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from backend.db.models import Rollout, Run
from backend.domain.statistics import Estimate, estimate_mean, paired_difference
from backend.domain.vocabulary import Phase, RunKind
from backend.evaluations.figures import REWARD


@dataclass(frozen=True, slots=True)
class Side:
    """One side: a run, and for a training run which of its held-out evaluations."""

    run: Run
    phase: Phase
    step: int | None = None

    def parameters(self, prefix: str) -> dict[str, Any]:
        return {f"{prefix}_run": self.run.id, f"{prefix}_phase": str(self.phase), f"{prefix}_step": self.step}


@dataclass(frozen=True, slots=True)
class TaskPair:
    """One task that both sides played: mean of each column over its rollouts on either side, the reward last."""

    task_id: uuid.UUID
    index: int
    level: int
    before: list[float]
    after: list[float]
    rollout_before: uuid.UUID
    """The first member of its group."""
    rollout_after: uuid.UUID

    @property
    def difference(self) -> float:
        """Of the reward."""
        return self.after[-1] - self.before[-1]


@dataclass(frozen=True, slots=True)
class ColumnDifference:
    """One column on both sides. `difference` is after minus before over tasks, with its 95 % interval."""

    name: str
    weight: float | None
    before: Estimate
    after: Estimate
    difference: Estimate


@dataclass(frozen=True, slots=True)
class LevelDifference:
    """The reward at one level."""

    level: int
    tasks: int
    before: float
    after: float
    difference: Estimate


@dataclass(slots=True)
class Comparison:
    """What two sides amount to on the tasks that both of them played."""

    pairs: list[TaskPair] = field(default_factory=list)
    """Most improved first."""
    columns: list[ColumnDifference] = field(default_factory=list)
    """The reward first."""
    levels: list[LevelDifference] = field(default_factory=list)
    only_before: int = 0
    """Tasks that only the first side completed."""
    only_after: int = 0

    @property
    def wins(self) -> int:
        return sum(pair.difference > TIE for pair in self.pairs)

    @property
    def losses(self) -> int:
        return sum(pair.difference < -TIE for pair in self.pairs)

    @property
    def ties(self) -> int:
        return len(self.pairs) - self.wins - self.losses


TIE = 1e-6
"""Rewards that differ by less are the same: they are stored in single precision."""


def side_of(session: Session, run: Run, step: int | None = None) -> Side:
    """An evaluation as it is; of a training run the held-out evaluation at a step, else the newest."""
    if run.kind is not RunKind.TRAINING:
        return Side(run, Phase.CHECK if run.kind is RunKind.CHECK else Phase.EVALUATION)
    if step is None:
        held_out = (Rollout.run_id == run.id, Rollout.phase == Phase.HELDOUT)
        step = session.scalar(select(func.max(Rollout.training_step)).where(*held_out))
    return Side(run, Phase.HELDOUT, step)


def problem(before: Side, after: Side) -> str | None:
    """Why two sides cannot be compared at all, in words; None when they can."""
    one, other = before.run.version, after.run.version
    if one.environment_id != other.environment_id:
        return f"These runs played different environments: {one.environment.name} and {other.environment.name}."
    if one.id != other.id:
        return (
            f"These runs played different versions of {one.environment.name}, v{one.number} and v{other.number}: "
            "their tasks and rewards need not be the same. Evaluate both policies on one version."
        )
    if before.run.id == after.run.id and before.step == after.step:
        return "This is the same run twice. Choose another one for either side."
    return None


_PAIRS = text("""
WITH played AS (
    SELECT g.task_id, g.ordinal, r.id, r.member,
           r.run_id = :b_run AND r.phase = :b_phase
             AND (CAST(:b_step AS int) IS NULL OR r.training_step = :b_step) AS is_after,
           array_append(r.columns, r.reward) AS values
    FROM rollouts r JOIN groups g ON g.id = r.group_id
    WHERE r.status = 'completed' AND (
        r.run_id = :a_run AND r.phase = :a_phase AND (CAST(:a_step AS int) IS NULL OR r.training_step = :a_step)
     OR r.run_id = :b_run AND r.phase = :b_phase AND (CAST(:b_step AS int) IS NULL OR r.training_step = :b_step))
), mean AS (
    SELECT task_id, is_after, position, avg(value::float8) AS value
    FROM played CROSS JOIN LATERAL unnest(values) WITH ORDINALITY AS v(value, position) GROUP BY 1, 2, 3
), folded AS (
    SELECT task_id, array_agg(value ORDER BY position) FILTER (WHERE NOT is_after) AS before,
           array_agg(value ORDER BY position) FILTER (WHERE is_after) AS after
    FROM mean GROUP BY task_id
), example AS (
    SELECT task_id, (array_agg(id ORDER BY ordinal, member) FILTER (WHERE NOT is_after))[1] AS rollout_before,
           (array_agg(id ORDER BY ordinal, member) FILTER (WHERE is_after))[1] AS rollout_after
    FROM played GROUP BY task_id
)
SELECT t.id AS task_id, t.index AS number, t.level, f.before, f.after, e.rollout_before, e.rollout_after
FROM folded f JOIN example e USING (task_id) JOIN tasks t ON t.id = task_id
""")


def compare(session: Session, before: Side, after: Side) -> Comparison:
    """Pair the tasks that both sides completed. Failed rollouts take no part."""
    found = Comparison()
    for row in session.execute(_PAIRS, before.parameters("a") | after.parameters("b")):
        if row.before is None:
            found.only_after += 1
        elif row.after is None:
            found.only_before += 1
        else:
            found.pairs.append(
                TaskPair(
                    row.task_id, row.number, row.level, row.before, row.after, row.rollout_before, row.rollout_after
                )
            )
    found.pairs.sort(key=lambda pair: (-pair.difference, pair.index))
    found.columns = _columns(after.run, found.pairs)
    found.levels = _levels(found.pairs)
    return found


def _columns(run: Run, pairs: Sequence[TaskPair]) -> list[ColumnDifference]:
    weights: list[float | None] = [*run.weights, None]
    columns = []
    for position, name in enumerate([*run.columns, REWARD]):
        values_before = [pair.before[position] for pair in pairs]
        values_after = [pair.after[position] for pair in pairs]
        before, after = estimate_mean(values_before), estimate_mean(values_after)
        difference = paired_difference(values_before, values_after)
        if before and after and difference:
            columns.append(ColumnDifference(name, weights[position], before, after, difference))
    return columns[-1:] + columns[:-1]


def _levels(pairs: Sequence[TaskPair]) -> list[LevelDifference]:
    found = []
    for level in sorted({pair.level for pair in pairs}):
        before = [pair.before[-1] for pair in pairs if pair.level == level]
        after = [pair.after[-1] for pair in pairs if pair.level == level]
        difference = paired_difference(before, after)
        if difference is not None:
            means = sum(before) / len(before), sum(after) / len(after)
            found.append(LevelDifference(level, len(before), *means, difference))
    return found
