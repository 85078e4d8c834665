"""Reading checkpoints, exports and what a launch form offers."""

import uuid
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from backend.db.models import Certificate, Checkpoint, Environment, EnvironmentVersion, Export, Policy, Run
from backend.errors import NotFound
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


def checkpoints(
    session: Session,
    *,
    run_id: uuid.UUID | None = None,
    policy_id: uuid.UUID | None = None,
    is_best: bool | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Slice[Checkpoint]:
    """Newest first."""
    statement = select(Checkpoint).join(Checkpoint.policy).options(joinedload(Checkpoint.policy))
    statement = statement.where(Policy.deleted_at.is_(None))
    if run_id is not None:
        statement = statement.where(Checkpoint.run_id == run_id)
    if policy_id is not None:
        statement = statement.where(Checkpoint.policy_id == policy_id)
    if is_best is not None:
        statement = statement.where(Checkpoint.is_best.is_(is_best))
    return slice_of(session, statement, NEWEST_CHECKPOINTS, after=after, limit=limit)


def get_checkpoint(session: Session, checkpoint_id: uuid.UUID) -> Checkpoint:
    statement = select(Checkpoint).options(joinedload(Checkpoint.policy)).where(Checkpoint.id == checkpoint_id)
    found = session.scalars(statement).one_or_none()
    if found is None:
        raise NotFound("There is no such checkpoint.")
    return found


def startable_checkpoints(session: Session) -> Sequence[Checkpoint]:
    """Checkpoints that a new run may start from: the newest hundred."""
    return checkpoints(session, limit=100).items


def exports(
    session: Session, *, run_id: uuid.UUID | None = None, after: str | None = None, limit: int = 50
) -> Slice[Export]:
    """Newest first."""
    statement = select(Export).options(joinedload(Export.checkpoint).joinedload(Checkpoint.policy))
    if run_id is not None:
        statement = statement.where(Export.run_id == run_id)
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
