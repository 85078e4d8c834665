"""What is about to be started, put together for the checks that need no worker."""

from sqlalchemy.orm import Session

from backend.db.models import Checkpoint, EnvironmentVersion
from backend.domain.manifest import Manifest
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.preflight.at_once import Plan, checks_at_once
from backend.domain.training.preflight.findings import PreflightFinding
from backend.training.queries import find_certificate
from backend.training.workers import offers


def plan_of(session: Session, version: EnvironmentVersion, configuration: TrainingConfiguration) -> Plan:
    certificate = find_certificate(session, version.id)
    return Plan(
        configuration=configuration,
        manifest=Manifest.model_validate(version.manifest),
        certificate=certificate.status if certificate else None,
        offers=offers(session),
        checkpoint_bytes=_size(session, configuration),
    )


def findings_at_once(
    session: Session, version: EnvironmentVersion, configuration: TrainingConfiguration
) -> list[PreflightFinding]:
    return checks_at_once(plan_of(session, version, configuration))


def _size(session: Session, configuration: TrainingConfiguration) -> int | None:
    wanted = configuration.model.checkpoint
    if configuration.model.source != "checkpoint" or wanted is None:
        return None
    checkpoint = session.get(Checkpoint, wanted)
    return checkpoint.size_bytes if checkpoint else None
