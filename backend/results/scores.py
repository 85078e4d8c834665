"""A run's mean values by task, for comparisons: one row per task, whatever the number of rollouts."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.domain.environments.manifest import Manifest
from backend.domain.environments.reward_bounds import RewardScale, reward_scale
from backend.domain.results.power import TaskSpread
from backend.domain.vocabulary import Phase, RunKind
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class TaskKey(NamedTuple):
    """A task by its content, which is the same in every version, so that runs of two versions can be paired."""

    split: str
    number: int
    seed: int
    environment: uuid.UUID
    """A training run can play several."""


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A run, and for a training run one of its held-out evaluations."""

    run: Run
    phase: Phase | None
    step: int | None = None
    mark: str = ""
    """`best` or `last`: which checkpoint of its training run this is, if it is one of the two, or both."""

    @property
    def label(self) -> str:
        """Name of the policy."""
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

    @property
    def scale(self) -> RewardScale | None:
        """Floor and gold of its reward, by the manifest of its version."""
        return reward_scale(Manifest.model_validate(self.run.version.manifest), self.run.columns, self.run.weights)

    def parameters(self) -> dict[str, object]:
        return {"run": self.run.id, "phase": self.phase and str(self.phase), "step": self.step}


@dataclass(frozen=True, slots=True)
class TaskScores:
    """Mean of every column over the completed rollouts of each task, the reward last."""

    side: ComparedRun
    tasks: dict[TaskKey, int]
    """Row of `values` by task."""
    levels: list[int]
    task_ids: list[uuid.UUID]
    values: NDArray[np.float64]
    spreads: list[TaskSpread]
    """Number, mean and variance of each task's rewards."""

    @property
    def completed(self) -> int:
        return len(self.tasks)

    def rows(self, keys: Iterable[TaskKey]) -> NDArray[np.float64]:
        """The values of these tasks, in their order."""
        return self.values[[self.tasks[key] for key in keys]]


def side_of(session: Session, run: Run, step: int | None = None) -> ComparedRun:
    """An evaluation, or a training run's held-out evaluation at a step. Default: the latest step."""
    if run.kind is not RunKind.TRAINING:
        return ComparedRun(run, Phase.CHECK if run.kind is RunKind.CHECK else None)
    is_held_out = Rollout.run_id == run.id, Rollout.phase == Phase.HELDOUT
    last = session.scalar(select(func.max(Rollout.training_step)).where(*is_held_out))
    step = last if step is None else step
    marks = [
        name for name, at in (("best", best_step(session, run)), ("last", last)) if step is not None and at == step
    ]
    return ComparedRun(run, Phase.HELDOUT, step, " and ".join(marks))


def best_step(session: Session, run: Run) -> int | None:
    """The training step of the held-out evaluation of a run's best checkpoint."""
    return best_steps(session, [run.id]).get(run.id)


def best_steps(session: Session, run_ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, int]:
    """The same of several runs. Runs without a best checkpoint are missing."""
    best = select(Checkpoint).where(Checkpoint.run_id.in_(list(run_ids)), Checkpoint.is_best)
    return {
        each.run_id: int(each.heldout.get("training_step", each.step)) for each in session.scalars(best) if each.run_id
    }


def scores(session: Session, side: ComparedRun) -> TaskScores:
    import numpy as np

    width = len(side.run.columns) + 1
    sources = [*(f"r.columns[{n}]::float8" for n in range(1, width)), "r.reward::float8"]
    by_group = ", ".join(f"avg({source}) AS v{n}" for n, source in enumerate(sources))
    means = ", ".join(f"avg(v{n}) AS v{n}" for n in range(width))
    packed = ", ".join(f"string_agg(float8send(coalesce(v{n}, 'NaN')), '') AS v{n}" for n in range(width))
    # Folded to groups before the tasks are joined, because groups are few and rollouts many. A row per split and
    # environment, with big-endian numbers: a row per task would take several times as long to read.
    statement = text(f"""
        WITH played AS (
            SELECT r.group_id, {by_group}, count(*) AS amount, var_samp(r.reward::float8) AS variance
            FROM rollouts r WHERE {_OF_SIDE} GROUP BY r.group_id
        ), task AS (
            SELECT t.id, t.split, t.index, t.seed, v.environment_id, t.level,
                   sum(amount) AS amount, avg(variance) AS variance, {means}
            FROM played p JOIN groups g ON g.id = p.group_id AND g.run_id = :run JOIN tasks t ON t.id = g.task_id
            JOIN environment_versions v ON v.id = t.version_id
            GROUP BY t.id, t.split, t.index, t.seed, v.environment_id, t.level
        )
        SELECT split, environment_id, string_agg(uuid_send(id), '') AS ids,
               string_agg(int8send(index) || int8send(seed) || int8send(level) || int8send(amount::bigint), '')
                   AS counts,
               string_agg(float8send(coalesce(variance, 'NaN')), '') AS variances, {packed}
        FROM task GROUP BY split, environment_id
    """)
    parts = []
    for row in session.execute(statement, side.parameters()):
        indexes, seeds, levels, amounts = np.frombuffer(row.counts, ">i8").reshape(-1, 4).T.tolist()
        columns = [np.frombuffer(getattr(row, f"v{n}"), ">f8") for n in range(width)]
        values = np.column_stack(columns).astype(float)
        keys = (TaskKey(row.split, *place, row.environment_id) for place in zip(indexes, seeds, strict=True))
        tasks = {key: number for number, key in enumerate(keys)}
        ids = [uuid.UUID(bytes=row.ids[start : start + 16]) for start in range(0, len(row.ids), 16)]
        variances = (None if value != value else value for value in np.frombuffer(row.variances, ">f8").tolist())
        spreads = list(map(TaskSpread, amounts, values[:, -1].tolist(), variances))
        parts.append(TaskScores(side, tasks, levels, ids, values, spreads))
    return merge(parts) if parts else TaskScores(side, {}, [], [], np.empty((0, width)), [])


def merge(parts: Sequence[TaskScores]) -> TaskScores:
    """Scores of one policy that played different tasks of a version in several runs, as if it had been one."""
    import numpy as np

    tasks: dict[TaskKey, int] = {}
    offset = 0
    for part in parts:
        if tasks.keys() & part.tasks:
            raise ValueError("a task was played in two runs")
        tasks |= {key: offset + row for key, row in part.tasks.items()}
        offset += len(part.task_ids)
    return TaskScores(
        parts[0].side,
        tasks,
        [level for part in parts for level in part.levels],
        [task_id for part in parts for task_id in part.task_ids],
        np.concatenate([part.values for part in parts]),
        [spread for part in parts for spread in part.spreads],
    )


def first_rollouts(session: Session, side: ComparedRun, task_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, uuid.UUID]:
    """The first completed rollout of each of these tasks."""
    rows = session.execute(_FIRST, side.parameters() | {"tasks": list(task_ids)})
    return {row.task_id: row.id for row in rows}


_OF_SIDE = """
r.run_id = :run AND r.status = 'completed'
  AND CASE WHEN CAST(:phase AS text) IS NULL THEN r.phase <> 'canary' ELSE r.phase = :phase END
  AND (CAST(:step AS int) IS NULL OR r.training_step = :step)
"""


_FIRST = text(f"""
SELECT DISTINCT ON (g.task_id) g.task_id, r.id
FROM groups g JOIN rollouts r ON r.group_id = g.id
WHERE g.run_id = :run AND g.task_id = ANY(CAST(:tasks AS uuid[])) AND {_OF_SIDE}
ORDER BY g.task_id, g.ordinal, r.member
""")
