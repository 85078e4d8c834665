"""Which versions of its environment a training run's branch may go on with, and what has to be so for that."""

import uuid
from collections.abc import Sequence

from sqlalchemy import Select, select
from sqlalchemy.orm import Session, joinedload

from backend.domain.environments.manifest import Manifest
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.mix import portions, union_columns
from backend.environments.tables import EnvironmentVersion
from backend.errors import InvalidInput
from backend.runs.tables import Run
from backend.training.branches import Onto
from backend.training.service import check_environment, pinned, reason_without_certificate


def other_versions(session: Session, run: Run) -> Sequence[EnvironmentVersion]:
    """All but the run's own, newest first."""
    own = session.get_one(EnvironmentVersion, run.version_id)
    of_environment = EnvironmentVersion.environment_id == own.environment_id, EnvironmentVersion.id != own.id
    return session.scalars(_versions().where(*of_environment).order_by(EnvironmentVersion.number.desc())).all()


def onto_version(session: Session, run: Run, number: int | None, without_certificate: str | None) -> Onto | None:
    """The version with this number, or None where the run's own was meant. Raises InvalidInput with what stands
    against it: it has no such tasks, levels or scripts, or no certificate and no reason to do without."""
    own = session.get_one(EnvironmentVersion, run.version_id, options=[joinedload(EnvironmentVersion.environment)])
    if number is None or number == own.number:
        return None
    version = _numbered(session, own.environment_id, number)
    if version is None:
        raise InvalidInput(fields={"version": f"There is no {own.environment.name} v{number}."})
    configuration = TrainingConfiguration.of_run(run.configuration)
    _, versions = pinned(session, version, configuration)
    manifests = [Manifest.model_validate(each.manifest) for each in versions]
    weights = [1.0, *(part.weight for part in configuration.mix)]
    check_environment(configuration, manifests[0], portions(weights, configuration.heldout.tasks)[0])
    reason = reason_without_certificate(session, [version], without_certificate)
    return Onto(version, {column.name: column.weight for column in union_columns(manifests)}, reason)


def _numbered(session: Session, environment_id: uuid.UUID, number: int) -> EnvironmentVersion | None:
    wanted = EnvironmentVersion.environment_id == environment_id, EnvironmentVersion.number == number
    return session.scalars(_versions().where(*wanted)).one_or_none()


def _versions() -> Select[EnvironmentVersion]:
    return select(EnvironmentVersion).options(joinedload(EnvironmentVersion.environment))
