"""Reading what a launch begins with: versions, runs to do again, pre-flights."""

import uuid

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from backend.domain.vocabulary import RunKind
from backend.environments.tables import EnvironmentVersion
from backend.errors import NotFound
from backend.runs.tables import Run
from backend.training.tables import Preflight

_ENVIRONMENT = joinedload(EnvironmentVersion.environment)


def find_version(session: Session, version_id: uuid.UUID) -> EnvironmentVersion | None:
    statement = select(EnvironmentVersion).options(_ENVIRONMENT).where(EnvironmentVersion.id == version_id)
    return session.scalars(statement).one_or_none()


def find_training_run(session: Session, run_id: uuid.UUID) -> Run | None:
    statement = (
        select(Run)
        .options(joinedload(Run.version).joinedload(EnvironmentVersion.environment))
        .where(Run.id == run_id, Run.kind == RunKind.TRAINING)
    )
    return session.scalars(statement).one_or_none()


def get_training_run(session: Session, run_id: uuid.UUID) -> Run:
    run = find_training_run(session, run_id)
    if run is None:
        raise NotFound("There is no such training run.")
    return run


def get_preflight(session: Session, preflight_id: uuid.UUID) -> Preflight:
    statement = (
        select(Preflight)
        .options(joinedload(Preflight.version).joinedload(EnvironmentVersion.environment))
        .where(Preflight.id == preflight_id)
    )
    preflight = session.scalars(statement).one_or_none()
    if preflight is None:
        raise NotFound("There is no such pre-flight.")
    return preflight
