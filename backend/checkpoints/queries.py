"""Reading checkpoints, exports and what a launch form offers."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from backend.checkpoints.tables import Checkpoint, Export
from backend.domain.vocabulary import RunKind
from backend.environments.tables import Certificate, Environment, EnvironmentVersion
from backend.errors import NotFound
from backend.policies.tables import Policy
from backend.runs.tables import Run
from backend.web.paging import Key, Slice, slice_of

NEWEST_CHECKPOINTS = (Key(Checkpoint.id),)
NEWEST_EXPORTS = (Key(Export.id),)


def trainable_versions(session: Session) -> Sequence[EnvironmentVersion]:
    """Every version of the environments in use, newest first within each environment."""
    statement = (
        select(EnvironmentVersion)
        .join(EnvironmentVersion.environment)
        .options(joinedload(EnvironmentVersion.environment))
        .where(Environment.archived_at.is_(None))
        .order_by(Environment.name, EnvironmentVersion.number.desc())
    )
    return session.scalars(statement).all()


def find_certificate(session: Session, version_id: uuid.UUID) -> Certificate | None:
    """The newest certificate of a version."""
    statement = select(Certificate).where(Certificate.version_id == version_id).order_by(Certificate.id.desc()).limit(1)
    return session.scalars(statement).first()


@dataclass(frozen=True, slots=True)
class CheckpointFilter:
    """Which checkpoints; None: any."""

    run_id: uuid.UUID | None = None
    policy_id: uuid.UUID | None = None
    environment: str | None = None
    """Of the run's version."""
    is_best: bool | None = None
    has_weights: bool | None = None


def checkpoints(
    session: Session, wanted: CheckpointFilter, *, after: str | None = None, limit: int = 50
) -> Slice[Checkpoint]:
    """Newest first."""
    statement = select(Checkpoint).join(Checkpoint.policy).options(joinedload(Checkpoint.policy))
    statement = statement.where(Policy.deleted_at.is_(None))
    if wanted.run_id is not None:
        statement = statement.where(Checkpoint.run_id == wanted.run_id)
    if wanted.policy_id is not None:
        statement = statement.where(Checkpoint.policy_id == wanted.policy_id)
    if wanted.environment is not None:
        of_environment = (select(Run.id).join(Run.version).join(EnvironmentVersion.environment)).where(
            Environment.name == wanted.environment
        )
        statement = statement.where(Checkpoint.run_id.in_(of_environment))
    if wanted.is_best is not None:
        statement = statement.where(Checkpoint.is_best.is_(wanted.is_best))
    if wanted.has_weights is not None:
        statement = statement.where(Checkpoint.pruned_at.is_(None).is_(wanted.has_weights))
    return slice_of(session, statement, NEWEST_CHECKPOINTS, after=after, limit=limit)


def beside(session: Session, some: Sequence[Checkpoint]) -> Sequence[Checkpoint]:
    """These checkpoints and all others of their runs: what is last or best is known only beside the others."""
    runs = {each.run_id for each in some if each.run_id}
    statement = select(Checkpoint).options(joinedload(Checkpoint.policy)).where(Checkpoint.run_id.in_(runs))
    alone = [each for each in some if each.run_id is None]
    return [*session.scalars(statement.order_by(Checkpoint.id)), *alone] if runs else alone


def get_checkpoint(session: Session, checkpoint_id: uuid.UUID) -> Checkpoint:
    statement = select(Checkpoint).options(joinedload(Checkpoint.policy)).where(Checkpoint.id == checkpoint_id)
    found = session.scalars(statement).one_or_none()
    if found is None:
        raise NotFound("There is no such checkpoint.")
    return found


def trained_environments(session: Session) -> Sequence[str]:
    """Names of environments with training runs."""
    statement = (
        select(Environment.name)
        .join(EnvironmentVersion, EnvironmentVersion.environment_id == Environment.id)
        .join(Run, Run.version_id == EnvironmentVersion.id)
        .where(Run.kind == RunKind.TRAINING)
    )
    return session.scalars(statement.distinct().order_by(Environment.name)).all()


def trained_policies(session: Session) -> list[tuple[str, str]]:
    """Id and name of policies with checkpoints, newest first."""
    has_checkpoints = select(Checkpoint.id).where(Checkpoint.policy_id == Policy.id).exists()
    statement = select(Policy).where(Policy.deleted_at.is_(None), has_checkpoints).order_by(Policy.id.desc())
    return [(str(policy.id), policy.name) for policy in session.scalars(statement)]


def startable_checkpoints(session: Session) -> Sequence[Checkpoint]:
    """Checkpoints that a new run may start from: the newest hundred."""
    return checkpoints(session, CheckpointFilter(has_weights=True), limit=100).items


def exports(
    session: Session,
    *,
    run_id: uuid.UUID | None = None,
    checkpoint_id: uuid.UUID | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Slice[Export]:
    """Newest first."""
    statement = select(Export).options(joinedload(Export.checkpoint).joinedload(Checkpoint.policy))
    if run_id is not None:
        statement = statement.where(Export.run_id == run_id)
    if checkpoint_id is not None:
        statement = statement.where(Export.checkpoint_id == checkpoint_id)
    return slice_of(session, statement, NEWEST_EXPORTS, after=after, limit=limit)


def get_export(session: Session, export_id: uuid.UUID) -> Export:
    statement = (
        select(Export)
        .options(
            joinedload(Export.checkpoint).joinedload(Checkpoint.policy),
            joinedload(Export.run).joinedload(Run.version).joinedload(EnvironmentVersion.environment),
        )
        .where(Export.id == export_id)
    )
    found = session.scalars(statement).one_or_none()
    if found is None:
        raise NotFound("There is no such export.")
    return found
