"""The rows of a hand-played episode: its run, its one rollout, its task, the policy that stands for all people."""

import uuid
from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, contains_eager, joinedload, undefer

from backend.domain.ids import new_id, stable_id
from backend.domain.rollouts.rollout import TaskSpec
from backend.domain.vocabulary import Phase, PolicyKind, RolloutStatus, RunKind
from backend.environments.tables import Environment, EnvironmentVersion
from backend.errors import NotFound
from backend.policies.tables import Policy
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.tables import Run

HUMAN = "human"


def get_play(session: Session, name: str, run_id: uuid.UUID) -> Run:
    """The play run with its version and environment. Raises NotFound."""
    statement = (
        select(Run)
        .join(Run.version)
        .join(EnvironmentVersion.environment)
        .options(
            contains_eager(Run.version).contains_eager(EnvironmentVersion.environment),
            joinedload(Run.creator),
        )
        .where(Run.id == run_id, Run.kind == RunKind.PLAY, Environment.name == name)
    )
    run = session.scalars(statement).one_or_none()
    if run is None:
        raise NotFound("There is no such episode of this environment.")
    return run


def plays_of(session: Session, environment: Environment, person_id: uuid.UUID, *, limit: int = 10) -> list[Run]:
    """This person's episodes, newest first."""
    statement = (
        select(Run)
        .join(Run.version)
        .options(contains_eager(Run.version))
        .where(
            Run.kind == RunKind.PLAY,
            Run.created_by == person_id,
            EnvironmentVersion.environment_id == environment.id,
        )
        .order_by(Run.created_at.desc(), Run.id.desc())
        .limit(limit)
    )
    return list(session.scalars(statement))


def task_of_play(session: Session, run: Run) -> Task:
    return session.scalars(select(Task).join(Group, Group.task_id == Task.id).where(Group.run_id == run.id)).one()


def rollout_of_play(session: Session, run: Run) -> Rollout:
    """The one rollout of a play run, with all that is deferred."""
    options = (undefer(Rollout.opening), undefer(Rollout.steps), undefer(Rollout.messages))
    statement = select(Rollout).where(Rollout.run_id == run.id).options(*options)
    return session.scalars(statement.execution_options(populate_existing=True)).one()


def replies_of(session: Session, run: Run) -> list[str]:
    """The replies that the environment has answered."""
    return [str(step["reply"]) for step in rollout_of_play(session, run).steps]


def human_policy(session: Session) -> uuid.UUID:
    """The policy of all people, made on demand."""
    row = {"id": new_id(), "name": HUMAN, "kind": PolicyKind.HUMAN, "description": "A person who plays by hand."}
    session.execute(insert(Policy).values(row | {"configuration": {}}).on_conflict_do_nothing(index_elements=["name"]))
    return session.scalars(select(Policy.id).where(Policy.name == HUMAN)).one()


def add_rollout(session: Session, run: Run, task: TaskSpec) -> None:
    """The run's one group and rollout, to be filled by its job."""
    task_id = stable_id("task", run.version_id, task.split, task.index, task.seed)
    row = {"id": task_id, "version_id": run.version_id, "split": task.split, "index": task.index}
    row |= {"level": task.level, "seed": task.seed, "arguments": dict(task.arguments)}
    session.execute(insert(Task).values(row).on_conflict_do_nothing())
    group = Group(
        id=stable_id("group", run.id, Phase.PLAY, None, 0), run_id=run.id, task_id=task_id, phase=Phase.PLAY, ordinal=0
    )
    session.add(group)
    session.flush()
    session.add(
        Rollout(
            id=stable_id("rollout", group.id, 0),
            run_id=run.id,
            group_id=group.id,
            member=0,
            seq=1,
            phase=Phase.PLAY,
            level=task.level,
            status=RolloutStatus.PLAYING,
            started_at=datetime.now(UTC),
        )
    )
    session.flush()
