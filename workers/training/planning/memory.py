"""What the planner remembers, kept beside the trainer's states; where it is missing, found out from stored rollouts."""

import json
import uuid
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from sqlalchemy import select

from backend.core.session import transaction
from backend.domain.rollouts.rollout import Rollout, TaskSpec
from backend.domain.vocabulary import OF_STEPS, Phase, RolloutStatus
from backend.rollouts.tables import Group, Task
from backend.rollouts.tables import Rollout as RolloutRow
from backend.runs.tables import Run
from workers.training.planning.planner import Planner
from workers.training.resume import newest_complete, step_of


class PlanMemory:
    """One file a step, as long as a saved state of the trainer may need it."""

    def __init__(self, folder: Path) -> None:
        """`folder`: where the trainer's states are."""
        self._states, self._folder = folder, folder / "plans"

    def keep(self, step: int, planner: Planner) -> None:
        """After a step. What is older than the newest saved state is not needed any more."""
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = self._folder / f"{step}.partial"
        partial.write_text(json.dumps(planner.state))
        partial.replace(self._path(step))
        needed = step_of(newest_complete(self._states)) // planner.choice.updates
        for path in self._folder.glob("*.json"):
            if int(path.stem) < needed:
                path.unlink()

    def recall(self, step: int, planner: Planner, run_id: uuid.UUID) -> None:
        """Bring a new planner to where it was after this step of the run."""
        path = self._path(step)
        if step and path.exists():
            planner.restore(json.loads(path.read_text()))
        elif step:
            replay(planner, run_id, step)

    def _path(self, step: int) -> Path:
        return self._folder / f"{step}.json"


def replay(planner: Planner, run_id: uuid.UUID, last: int) -> None:
    """Tell a new planner of the stored rollouts of a run's steps up to this one."""
    needs_rollouts = planner.is_adaptive or planner.choice.replace_uniform
    stored = dict(_stored_steps(run_id, last)) if needs_rollouts else {}
    for step in range(1, last + 1):
        rollouts = stored.get(step, [])
        planner.plans_of(step, sorted({rollout.group for rollout in rollouts}))
        planner.learn(step, rollouts)


def _stored_steps(run_id: uuid.UUID, last: int) -> Iterator[tuple[int, list[Rollout]]]:
    """Completed rollouts by training step, as far as a planner looks at them."""
    of_run = (RolloutRow.run_id == run_id, RolloutRow.phase.in_(OF_STEPS), RolloutRow.training_step <= last)
    statement = (
        select(RolloutRow.training_step, RolloutRow.member, RolloutRow.reward, RolloutRow.columns, Group, Task)
        .join(Group, Group.id == RolloutRow.group_id)
        .join(Task, Task.id == Group.task_id)
        .where(*of_run, RolloutRow.status == RolloutStatus.COMPLETED)
        .order_by(RolloutRow.training_step, Group.ordinal, RolloutRow.member)
    )
    with transaction() as session:
        run = session.get_one(Run, run_id)
        for step, rows in groupby(session.execute(statement), key=lambda row: row.training_step):
            yield step, [_rollout(row, run) for row in rows]


def _rollout(row: Any, run: Run) -> Rollout:
    task: Task = row.Task
    asked_by = None if task.version_id == run.version_id else task.version_id
    return Rollout(
        task=TaskSpec(task.split, task.index, task.level, task.seed, task.arguments, asked_by),
        phase=Phase.TRAIN,
        group=row.Group.ordinal,
        member=row.member,
        status=RolloutStatus.COMPLETED,
        reward=row.reward,
        columns=dict(zip(run.columns, row.columns, strict=True)),
    )
