"""Environments to be planned for, without files and rows."""

import uuid

from backend.domain.environments.manifest import Manifest
from workers.training.assignment import TrainingEnv


def make_venue(manifest: Manifest, *, weight: float = 1.0, is_own: bool = True) -> TrainingEnv:
    """The run's own environment, or one of its mix."""
    version_id = uuid.uuid5(uuid.NAMESPACE_OID, manifest.name)
    return TrainingEnv(manifest.name, version_id, manifest, "", {}, weight, None if is_own else version_id)
