"""What is about to be started, put together for the checks that need no worker."""

from sqlalchemy.orm import Session

from backend.checkpoints.queries import find_certificate
from backend.core.artifacts import store_id
from backend.domain.environments.manifest import Manifest
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.preflight.findings import PreflightFinding
from backend.domain.training.preflight.static import Plan, Site, checks_at_once
from backend.environments.tables import EnvironmentVersion
from backend.errors import InvalidInput
from backend.training.initial_weights import beginning_of
from backend.training.mixing import version_of_part
from backend.training.workers import offers


def plan_of(session: Session, version: EnvironmentVersion, configuration: TrainingConfiguration) -> Plan:
    sites, missing = [_site(session, version)], []
    for part in configuration.mix:
        try:
            sites.append(_site(session, version_of_part(session, part), part.weight))
        except InvalidInput as error:
            missing.append(error.fields["mix"])
    beginning = beginning_of(session, configuration.model)
    return Plan(
        configuration=configuration,
        sites=sites,
        offers=offers(session),
        checkpoint_bytes=beginning.size_bytes,
        context=beginning.context,
        is_pretrained=beginning.is_pretrained,
        missing=missing,
        store=store_id(),
    )


def _site(session: Session, version: EnvironmentVersion, weight: float = 1.0) -> Site:
    certificate = find_certificate(session, version.id)
    return Site(Manifest.model_validate(version.manifest), certificate.status if certificate else None, weight)


def findings_at_once(
    session: Session, version: EnvironmentVersion, configuration: TrainingConfiguration
) -> list[PreflightFinding]:
    return checks_at_once(plan_of(session, version, configuration))
