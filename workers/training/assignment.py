"""All that a training process needs to know of its run, read once."""

import uuid
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.orm import undefer

from backend.db.models import EnvironmentVersion, Run
from backend.db.session import transaction
from backend.domain.manifest import Manifest
from backend.domain.training import TrainingConfiguration
from backend.settings import get_settings


@dataclass(frozen=True, slots=True)
class Assignment:
    """A training run."""

    run_id: uuid.UUID
    version_id: uuid.UUID
    policy_id: uuid.UUID
    """The policy that is trained."""
    configuration: TrainingConfiguration
    manifest: Manifest
    content_hash: str
    files: dict[str, str]
    folder: Path
    """Where this machine keeps what a resume needs."""
    was_gate_closed: bool
    """An earlier attempt paused at the gate, and a person resumed it."""


class NoPolicy(RuntimeError):
    """The run trains no policy."""


def read_assignment(run_id: uuid.UUID) -> Assignment:
    with transaction() as session:
        run = session.get_one(Run, run_id)
        if run.policy_id is None:
            raise NoPolicy
        version = session.get_one(EnvironmentVersion, run.version_id, options=[undefer(EnvironmentVersion.files)])
        return Assignment(
            run_id=run_id,
            version_id=run.version_id,
            policy_id=run.policy_id,
            configuration=TrainingConfiguration.of_run(run.configuration),
            manifest=Manifest.model_validate(version.manifest),
            content_hash=version.content_hash,
            files=dict(version.files),
            folder=get_settings().data / "training" / str(run_id),
            was_gate_closed=run.summary.get("gate", {}).get("is_open") is False,
        )
