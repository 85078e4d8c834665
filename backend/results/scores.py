"""A run's mean values by task, for comparisons: one row per task, whatever the number of rollouts."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.domain.environments.manifest import Manifest
from backend.domain.environments.reward_bounds import RewardScale, reward_scale
from backend.domain.results.power import TaskSpreads
from backend.domain.runs.plans import EvaluationPlan
from backend.domain.vocabulary import Phase, RunKind
from backend.environments.tables import EnvironmentVersion
from backend.results.rewards import FigureScope, read_rewards
from backend.rollouts.tables import Group
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


class TaskKeys:
    """Keys of tasks in their order, each once, as one array: a comparison has tens of thousands."""

    FIELDS = (("split", "S12"), ("number", ">i8"), ("seed", ">u8"), ("environment", "V16"))
    SIGN = 1 << 63
    """Added to seeds, so that the order of the bytes is that of the numbers."""

    def __init__(self, packed: NDArray[np.bytes_]) -> None:
        """`packed`: the bytes of the fields."""
        self.packed = packed

    @classmethod
    def of(cls, keys: Iterable[TaskKey]) -> TaskKeys:
        import numpy as np

        rows = [
            (k.split.ljust(12).encode(), k.number, (k.seed + cls.SIGN) % (2 * cls.SIGN), k.environment.bytes)
            for k in keys
        ]
        return cls(np.unique(np.array(rows, list(cls.FIELDS)).view("S44")))

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, place: int) -> TaskKey:
        row = self.fields[place]
        seed, environment = int(row["seed"]) - self.SIGN, uuid.UUID(bytes=row["environment"].tobytes())
        return TaskKey(row["split"].decode().strip(), int(row["number"]), seed, environment)

    def __iter__(self) -> Iterator[TaskKey]:
        return (self[place] for place in range(len(self)))

    @property
    def fields(self) -> NDArray[np.void]:
        return self.packed.view(list(self.FIELDS))

    def shared_with(self, others: Iterable[TaskKeys]) -> TaskKeys:
        import numpy as np

        shared = self.packed
        for other in others:
            if not np.array_equal(shared, other.packed):  # runs on the same tasks are common
                shared = np.intersect1d(shared, other.packed, assume_unique=True)
        return TaskKeys(shared)

    def places(self, keys: TaskKeys) -> NDArray[np.int64]:
        """Positions of `keys`, which must be among these."""
        return self.packed.searchsorted(keys.packed)

    def has(self, keys: TaskKeys) -> bool:
        return len(self.shared_with([keys])) == len(keys)

    def are_planned(self, plan: EvaluationPlan) -> bool:
        """Whether an evaluation of one environment plays all of these."""
        import numpy as np

        is_of_split = self.fields["split"] == str(plan.split).ljust(12).encode()
        return bool(is_of_split.all() and np.isin(self.fields["number"], list(plan.task_indexes)).all())


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
    """Mean of every column over the completed rollouts of each task, the reward last. All in the order of the keys."""

    side: ComparedRun
    keys: TaskKeys
    levels: NDArray[np.int64]
    task_ids: NDArray[np.void]
    """16 bytes each."""
    values: NDArray[np.float64]
    counts: NDArray[np.int64]
    """Completed rollouts."""
    variances: NDArray[np.float64]
    """Of the rewards of a task's rollouts; NaN for a single one."""

    @property
    def completed(self) -> int:
        return len(self.keys)

    def rows(self, keys: TaskKeys) -> NDArray[np.float64]:
        """The values of these tasks, in their order."""
        return self.values[self.keys.places(keys)]

    def spreads(self, keys: TaskKeys) -> TaskSpreads:
        places = self.keys.places(keys)
        return TaskSpreads(self.counts[places], self.values[places, -1], self.variances[places])

    def place_of(self, task_id: uuid.UUID, keys: TaskKeys) -> int | None:
        """Position of a task in `keys`; None if it is not among them."""
        row = (self.task_ids.view("S16") == task_id.bytes).nonzero()[0]
        found = (keys.packed == self.keys.packed[row[0]]).nonzero()[0] if len(row) else row
        return int(found[0]) if len(found) else None

    def task_id(self, place: int) -> uuid.UUID:
        return uuid.UUID(bytes=self.task_ids[place].tobytes())


def side_of(session: Session, run: Run, step: int | None = None) -> ComparedRun:
    """An evaluation, or a training run's held-out evaluation at a step. Default: the latest step."""
    if run.kind is not RunKind.TRAINING:
        return ComparedRun(run, Phase.CHECK if run.kind is RunKind.CHECK else None)
    is_held_out = Group.run_id == run.id, Group.phase == Phase.HELDOUT
    last = session.scalar(select(func.max(Group.training_step)).where(*is_held_out))
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

    rewards = read_rewards(session, side.run, FigureScope(side.run.id, side.phase, side.step))
    is_played = rewards.completed > 0
    if side.phase is None:
        is_played &= rewards.groups["phase"] != str(Phase.CANARY).ljust(12).encode()
    rewards = rewards.where(is_played)
    groups = rewards.groups
    versions, which = np.unique(groups["version"].view("S16"), return_inverse=True)
    ids = [uuid.UUID(bytes=each.ljust(16, b"\0")) for each in versions.tolist()]
    pairs = select(EnvironmentVersion.id, EnvironmentVersion.environment_id).where(EnvironmentVersion.id.in_(ids))
    environment_of = {row[0]: row[1] for row in session.execute(pairs)} if ids else {}
    rows = np.empty(len(groups), list(TaskKeys.FIELDS))
    rows["split"], rows["number"] = groups["split"], groups["index"]
    rows["seed"] = groups["seed"].astype(np.int64).view(np.uint64) ^ np.uint64(TaskKeys.SIGN)
    rows["environment"] = np.array([environment_of[each].bytes for each in ids], "V16")[which]

    # A task can have several groups: its values are the means of theirs.
    rewards_of_groups = np.repeat(rewards.means[:, 0], groups["members"])
    squares = np.where(rewards.is_completed, rewards.values[:, 0] - rewards_of_groups, 0.0) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        variances = rewards.total(squares) / (rewards.completed - 1)
    values = np.column_stack(
        [rewards.means[:, 1:], rewards.means[:, 0], np.where(rewards.completed > 1, variances, np.nan)]
    )
    keys, first, which = np.unique(rows.view("S44"), return_index=True, return_inverse=True)
    if len(keys) < len(values):
        values = np.column_stack([_mean_by(which, column) for column in values.T])
    elif len(keys):
        values = values[first]
    counts = np.bincount(which, rewards.completed, len(keys)).astype(np.int64)
    levels = groups["task_level"][first].astype(np.int64)
    return TaskScores(side, TaskKeys(keys), levels, groups["task"][first], values[:, :-1], counts, values[:, -1])


def _mean_by(which: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Means of values with the same number; NaN without any."""
    import numpy as np

    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.bincount(which, np.where(known, values, 0.0)) / np.bincount(which, known)


def merge(parts: Sequence[TaskScores]) -> TaskScores:
    """Scores of one policy that played different tasks of a version in several runs, as if it had been one."""
    import numpy as np

    keys, first = np.unique(np.concatenate([part.keys.packed for part in parts]), return_index=True)
    if len(keys) < sum(len(part.keys) for part in parts):
        raise ValueError("a task was played in two runs")

    def joined(name: str) -> NDArray[Any]:
        whole: NDArray[Any] = np.concatenate([getattr(part, name) for part in parts])[first]
        return whole

    names = ("levels", "task_ids", "values", "counts", "variances")
    return TaskScores(parts[0].side, TaskKeys(keys), *map(joined, names))


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
