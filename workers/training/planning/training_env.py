"""One environment version among those that a training run plays."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace

from backend.domain.environments.manifest import Manifest
from backend.domain.rollouts.rollout import TaskSpec, drawn_task, task_of
from backend.domain.vocabulary import Split


@dataclass(frozen=True, slots=True)
class TrainingEnv:
    """An environment version to be played, and how often."""

    name: str
    """Of the environment, with its version where the run plays two of the same; names its curves."""
    version_id: uuid.UUID
    manifest: Manifest
    content_hash: str
    files: Mapping[str, str]
    weight: float = 1.0
    tag: uuid.UUID | None = None
    """What its tasks carry: None for the run's own version, else the version."""

    def task(self, split: Split, index: int) -> TaskSpec:
        """Task `index` of the split, from the first one again where there are fewer."""
        tasks = self.manifest.proctor.tasks
        count = tasks.heldout if split is Split.HELDOUT else tasks.train
        return replace(task_of(self.manifest, split, index % count), version_id=self.tag)

    def drawn_task(self, index: int) -> TaskSpec:
        """Training task `index`, or a canary in its place."""
        count = self.manifest.proctor.tasks.train
        return replace(drawn_task(self.manifest, Split.TRAIN, index % count), version_id=self.tag)
