"""Versions, runs and pre-flights that training runs start from."""

import uuid
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from backend.domain.vocabulary import RunKind
from backend.environments.tables import Environment, EnvironmentVersion
from backend.errors import NotFound
from backend.runs.tables import Run
from backend.training.tables import Preflight

_ENVIRONMENT = joinedload(EnvironmentVersion.environment)


def find_training_run(session: Session, run_id: uuid.UUID) -> Run | None:
    statement = (
        select(Run)
        .options(joinedload(Run.version).joinedload(EnvironmentVersion.environment))
        .where(Run.id == run_id, Run.kind == RunKind.TRAINING)
    )
    return session.scalars(statement).one_or_none()


def get_preflight(session: Session, preflight_id: uuid.UUID | None) -> Preflight:
    statement = (
        select(Preflight)
        .options(joinedload(Preflight.version).joinedload(EnvironmentVersion.environment))
        .where(Preflight.id == preflight_id)
    )
    preflight = session.scalars(statement).one_or_none()
    if preflight is None:
        raise NotFound("There is no such pre-flight.")
    return preflight


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
