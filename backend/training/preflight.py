"""Checks before a training run starts: those that need no worker run at once, the others are queued."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.core import artifacts
from backend.core.artifacts import store_id
from backend.core.queue import enqueue
from backend.domain.environments.manifest import Manifest
from backend.domain.runs.capabilities import QUEUES
from backend.domain.training.adapter import AdapterRecord
from backend.domain.training.configuration import ModelChoice, TrainingConfiguration
from backend.domain.training.model_shapes import BYTES_OF_FLOAT, MAX_PARAMETERS
from backend.domain.training.preflight.findings import FindingStatus, PreflightFinding, worst
from backend.domain.training.preflight.static import Plan, Site, checks_at_once
from backend.environments.tables import EnvironmentVersion
from backend.errors import InvalidInput
from backend.training.choices import stored_choices
from backend.training.queries import find_certificate
from backend.training.schemas import TrainingRequest
from backend.training.service import choices_of_request, version_of_part
from backend.training.tables import Preflight
from backend.training.workers import offers
from backend.web.audit import audit
from backend.web.identity import Actor

CONFIGURATION = "config.json"
_CONTEXT_NAMES = ("max_position_embeddings", "n_positions")
_MOST_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a run begins."""

    size_bytes: int | None = None
    """Of a checkpoint's weights."""
    context: int | None = None
    """Tokens that the model reads; None: not known before it is loaded."""
    is_pretrained: bool = False
    """Its weights are more than what is made here, or nobody knows: rates for models from scratch do not suit it."""


def beginning_of(session: Session, choice: ModelChoice) -> Beginning:
    match choice.source:
        case "scratch":
            return Beginning(context=choice.context)
        case "checkpoint":
            row = session.get(Checkpoint, choice.checkpoint) if choice.checkpoint else None
            return _of_checkpoint(row) if row else Beginning()
        case _:
            return _of_base(choice.base)


def _of_checkpoint(row: Checkpoint) -> Beginning:
    if row.adapter is None:
        return Beginning(row.size_bytes, stored_context(row.artifact), _is_large(row.size_bytes))
    record = AdapterRecord.model_validate(row.adapter)
    base = Beginning(context=stored_context(record.artifact)) if record.artifact else _of_base(record.base)
    return Beginning(row.size_bytes, base.context, base.is_pretrained)


def _of_base(name: str) -> Beginning:
    """Of a folder that this process can read too; by its name nothing is known of a model of the Hub."""
    try:
        folder = Path(name).expanduser()
        if not folder.is_absolute() or not (folder / CONFIGURATION).is_file():
            return Beginning(is_pretrained=True)
        size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        with (folder / CONFIGURATION).open("rb") as file:
            return Beginning(context=_context(file.read(_MOST_BYTES)), is_pretrained=_is_large(size))
    except (OSError, ValueError, RuntimeError):  # the last: `~somebody` without a home
        return Beginning(is_pretrained=True)


def stored_context(artifact: str) -> int | None:
    """As the configuration beside stored weights has it; None where there is none."""
    try:
        with artifacts.open_file(f"{artifact}/{CONFIGURATION}") as file:
            return _context(file.read(_MOST_BYTES))
    except (OSError, ValueError):
        return None


def _context(text: bytes) -> int | None:
    configuration = json.loads(text)
    if not isinstance(configuration, dict):
        return None
    blocks: list[Mapping[str, Any]] = [configuration]
    if isinstance(inner := configuration.get("text_config"), dict):
        blocks.append(inner)
    told = (block.get(name) for block in blocks for name in _CONTEXT_NAMES)
    return next((length for length in told if isinstance(length, int) and length > 0), None)


def _is_large(size_bytes: int) -> bool:
    """Larger than any model that is made here."""
    return size_bytes > MAX_PARAMETERS * BYTES_OF_FLOAT


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
