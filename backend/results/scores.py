"""A run's mean values by task: what comparisons are made of. One row a task, whatever the number of rollouts."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import TextClause, func, select, text
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Phase, RunKind
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class TaskKey(NamedTuple):
    """A task by what it asks, the same in every version: runs of two versions meet here."""

    split: str
    number: int
    seed: int
    environment: uuid.UUID
    """A training run may play several."""


@dataclass(frozen=True, slots=True)
class Side:
    """A run, and for a training run which of its held-out examinations."""

    run: Run
    phase: Phase | None
    step: int | None = None

    @property
    def label(self) -> str:
        """Who played."""
        run = self.run
        name = run.policy.name if run.policy else run.name
        if run.checkpoint and run.kind is RunKind.EVALUATION:
            name += f" {run.checkpoint.stage} {run.checkpoint.step}"
        if run.kind in {RunKind.RESCORE, RunKind.REPLAY}:
            name += f" ({run.kind})"
        return name if self.step is None else f"{name} at step {self.step}"

    @property
    def reference(self) -> str:
        """As an address names it."""
        return str(self.run.id) if self.step is None else f"{self.run.id}@{self.step}"

    def parameters(self) -> dict[str, Any]:
        return {"run": self.run.id, "phase": self.phase and str(self.phase), "step": self.step}


@dataclass(frozen=True, slots=True)
class Scores:
    """Mean of every column over the completed rollouts of each task, the reward last."""

    side: Side
    tasks: dict[TaskKey, int]
    """Row of `values` by task."""
    levels: list[int]
    task_ids: list[uuid.UUID]
    values: NDArray[np.float64]

    def rows(self, keys: Iterable[TaskKey]) -> NDArray[np.float64]:
        """The values of these tasks in their order."""
        return self.values[[self.tasks[key] for key in keys]]


def side_of(session: Session, run: Run, step: int | None = None) -> Side:
    """An evaluation as it is; of a training run the held-out examination at a step, else the newest."""
    if run.kind is not RunKind.TRAINING:
        return Side(run, Phase.CHECK if run.kind is RunKind.CHECK else None)
    if step is None:
        held_out = (Rollout.run_id == run.id, Rollout.phase == Phase.HELDOUT)
        step = session.scalar(select(func.max(Rollout.training_step)).where(*held_out))
    return Side(run, Phase.HELDOUT, step)


def scores(session: Session, side: Side) -> Scores:
    import numpy as np

    width = len(side.run.columns) + 1
    rows = session.execute(_means(width - 1), side.parameters()).all()
    if not rows:
        return Scores(side, {}, [], [], np.empty((0, width)))
    # by column: tasks are tens of thousands
    ids, splits, numbers, seeds, environments, levels, *values = zip(*rows, strict=True)
    keys = map(TaskKey, splits, numbers, seeds, environments)
    found = np.column_stack([np.array(column, dtype=float) for column in values])
    return Scores(side, dict(zip(keys, range(len(rows)), strict=True)), list(levels), list(ids), found)


def first_rollouts(session: Session, side: Side, task_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, uuid.UUID]:
    """The first completed rollout of each of these tasks."""
    found = session.execute(_FIRST, side.parameters() | {"tasks": list(task_ids)})
    return {row.task_id: row.id for row in found}


_OF_SIDE = """
r.run_id = :run AND r.status = 'completed'
  AND CASE WHEN CAST(:phase AS text) IS NULL THEN r.phase <> 'canary' ELSE r.phase = :phase END
  AND (CAST(:step AS int) IS NULL OR r.training_step = :step)
"""


@lru_cache(maxsize=64)
def _means(columns: int) -> TextClause:
    """Folded to groups before the tasks are joined: groups are few, rollouts many."""
    names = [f"c{position}" for position in range(1, columns + 1)]
    values = [
        *(f"avg(r.columns[{n}]::float8) AS c{n}" for n in range(1, columns + 1)),
        "avg(r.reward::float8) AS reward",
    ]
    means = ", ".join(f"avg({name}) AS {name}" for name in [*names, "reward"])
    return text(f"""
        WITH played AS (
            SELECT r.group_id, {", ".join(values)} FROM rollouts r WHERE {_OF_SIDE} GROUP BY r.group_id
        )
        SELECT t.id, t.split, t.index, t.seed, v.environment_id, t.level, {means}
        FROM played p JOIN groups g ON g.id = p.group_id JOIN tasks t ON t.id = g.task_id
        JOIN environment_versions v ON v.id = t.version_id
        GROUP BY t.id, t.split, t.index, t.seed, v.environment_id, t.level
    """)


_FIRST = text(f"""
SELECT DISTINCT ON (g.task_id) g.task_id, r.id
FROM groups g JOIN rollouts r ON r.group_id = g.id
WHERE g.run_id = :run AND g.task_id = ANY(CAST(:tasks AS uuid[])) AND {_OF_SIDE}
ORDER BY g.task_id, g.ordinal, r.member
""")
