"""A look at a training run before it is queued: what is known at once is written down, the rest is a worker's."""

from sqlalchemy.orm import Session

from backend.core.queue import enqueue
from backend.domain.runs.capabilities import QUEUES
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.preflight.findings import FindingStatus, PreflightFinding, worst
from backend.training.choices import stored_choices
from backend.training.preflight_inputs import findings_at_once
from backend.training.schemas import TrainingRequest
from backend.training.service import choices_of_request
from backend.training.tables import Preflight
from backend.web.audit import audit
from backend.web.identity import Actor

JOB = "training.preflight"
ATTEMPTS = 2
"""A process that was killed, as for want of memory, is tried once more; then that is the finding."""


def start_preflight(session: Session, actor: Actor, request: TrainingRequest) -> Preflight:
    """Check what needs no worker, and queue what does. What a run refuses is refused here too."""
    configuration, (version, *_) = choices_of_request(session, request)
    preflight = Preflight(
        version_id=version.id,
        version=version,
        configuration=configuration.resolved(),
        findings=[finding.model_dump(mode="json") for finding in findings_at_once(session, version, configuration)],
        progress={"phase": "waiting for a worker"},
        created_by=actor.person_id,
    )
    session.add(preflight)
    session.flush()
    queue = QUEUES[configuration.engine]
    job = enqueue(session, JOB, queue=queue, arguments={"preflight_id": str(preflight.id)})
    job.max_attempts = ATTEMPTS
    audit(session, actor, "training.preflight", "preflight", preflight.id, version=str(version.id))
    return preflight


def findings_of(preflight: Preflight) -> list[PreflightFinding]:
    return [PreflightFinding.model_validate(finding) for finding in preflight.findings]


def verdict_of(preflight: Preflight) -> FindingStatus:
    """The worst of what was found so far."""
    return worst(findings_of(preflight))


def configuration_of(preflight: Preflight) -> TrainingConfiguration:
    return stored_choices(preflight.configuration)
