"""Read rollouts: ids that pass a filter, one rollout whole, its group, its flags and verdicts."""

import uuid
from collections.abc import Sequence

from sqlalchemy import Select, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session, joinedload, undefer

from backend.domain.environments.manifest import Manifest
from backend.environments.tables import EnvironmentVersion
from backend.errors import NotFound
from backend.rollouts.filters import select_rollouts
from backend.rollouts.listing import ListedRollout, columns_of
from backend.rollouts.scope import scope_of
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.tables import Run


def matching(session: Session, run: Run, expression: str, *, for_learning: bool = False) -> Select[uuid.UUID]:
    """Select the ids of the run's rollouts that pass a filter (`has flag and win = 0`), for use in other statements."""
    own = select(Rollout.id).where(Rollout.run_id == run.id)
    if not expression.strip():
        return own
    return own.where(*select_rollouts(scope_of(session, run, for_learning=for_learning), expression).conditions)


def newest(session: Session, run: Run, limit: int = 6) -> list[ListedRollout]:
    """The newest rollout of each of the newest groups with its conversation, for the cards of a live page."""
    recent = (
        select(Rollout.id, Rollout.group_id, Rollout.seq)
        .where(Rollout.run_id == run.id)
        .order_by(Rollout.seq.desc())
        .limit(limit * 64)
        .subquery()
    )
    one_a_group = distinct_on(recent.c.group_id)
    chosen = select(recent.c.id).ext(one_a_group).order_by(recent.c.group_id, recent.c.seq.desc())
    statement = (
        select(Rollout)
        .options(undefer(Rollout.messages), joinedload(Rollout.group).joinedload(Group.task))
        .where(Rollout.id.in_(chosen))
        .order_by(Rollout.seq.desc())
        .limit(limit)
    )
    return [ListedRollout(rollout, columns_of(run, rollout)) for rollout in session.scalars(statement)]


def get_rollout(session: Session, rollout_id: uuid.UUID) -> Rollout:
    """Read one rollout whole, with its task, run, version, environment and policy. Raises NotFound."""
    statement = (
        select(Rollout)
        .options(
            undefer(Rollout.opening),
            undefer(Rollout.steps),
            undefer(Rollout.messages),
            undefer(Rollout.tokens),
            joinedload(Rollout.group)
            .joinedload(Group.task)
            .joinedload(Task.version)
            .joinedload(EnvironmentVersion.environment),
            joinedload(Rollout.run).joinedload(Run.version).joinedload(EnvironmentVersion.environment),
            joinedload(Rollout.run).joinedload(Run.policy),
        )
        .where(Rollout.id == rollout_id)
    )
    rollout = session.scalars(statement).one_or_none()
    if rollout is None:
        raise NotFound("There is no such rollout.")
    return rollout


def weights_of(rollout: Rollout) -> dict[str, float]:
    """Weights of its reward by column. In a run on several environments, those of its own environment."""
    run, version = rollout.run, rollout.group.task.version
    if version.id == run.version_id:
        unknown = [1.0] * (len(run.columns) - len(run.weights))
        return dict(zip(run.columns, [*run.weights, *unknown], strict=True))
    return {column.name: column.weight for column in Manifest.model_validate(version.manifest).columns}


def siblings(session: Session, rollout: Rollout) -> Sequence[Rollout]:
    """All members of its group, including itself, in order."""
    statement = select(Rollout).where(Rollout.group_id == rollout.group_id).order_by(Rollout.member)
    return session.scalars(statement).all()
