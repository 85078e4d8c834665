"""A training run as its processes need it, read once: configuration, environments and where it branches off."""

import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload, undefer

from backend.core.session import transaction
from backend.domain.environments.manifest import Manifest, RewardColumn
from backend.domain.rollouts.rollout import Rollout, TaskSpec, drawn_task, task_of
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.mix import union_columns
from backend.domain.vocabulary import Split
from backend.environments.tables import Environment, EnvironmentVersion
from backend.runs.tables import Run
from backend.settings import get_settings
from backend.studies.queries import BRANCH


@dataclass(frozen=True, slots=True)
class TrainingEnv:
    """One environment version of a training run."""

    name: str  # name of the environment, with the version if the run plays two of the same. Used in curve names.
    version_id: uuid.UUID
    manifest: Manifest
    content_hash: str
    files: Mapping[str, str]
    weight: float = 1.0
    tag: uuid.UUID | None = None  # version id that its tasks carry: None for the run's own version

    def task(self, split: Split, index: int, *, may_be_canary: bool = False) -> TaskSpec:
        """Return task `index` of the split, or a canary in its place. Indices wrap around."""
        tasks = self.manifest.proctor.tasks
        count = tasks.heldout if split is Split.HELDOUT else tasks.train
        draw = drawn_task if may_be_canary else task_of
        return replace(draw(self.manifest, split, index % count), version_id=self.tag)


@dataclass(frozen=True, slots=True)
class BranchPoint:
    source_run_id: uuid.UUID
    step: int
    checkpoint_id: uuid.UUID
    start_id: uuid.UUID  # policy before GRPO, from which the divergence is measured
    source_folder: Path  # trainer states of the source, if it ran on this machine


@dataclass(frozen=True, slots=True)
class Assignment:
    run_id: uuid.UUID
    policy_id: uuid.UUID
    configuration: TrainingConfiguration
    envs: tuple[TrainingEnv, ...]  # the run's own environment version first, then those of its mix
    folder: Path  # trainer states on this machine, from which the run resumes
    was_gate_closed: bool  # an earlier attempt paused at the gate, and someone resumed the run
    branch: BranchPoint | None = None

    @property
    def manifest(self) -> Manifest:
        return self.envs[0].manifest

    @property
    def is_mixed(self) -> bool:
        return len(self.envs) > 1

    @property
    def columns(self) -> list[RewardColumn]:
        """Reward columns of all environments, in the order of the run's row."""
        return union_columns(env.manifest for env in self.envs)

    def columns_of(self, rollout: Rollout) -> list[RewardColumn]:
        return next(env.manifest.columns for env in self.envs if env.tag == rollout.task.version_id)


class VersionIsGone(RuntimeError):
    """An environment version of the run's mix was deleted."""


def training_folder(run_id: uuid.UUID) -> Path:
    return get_settings().data / "training" / str(run_id)


def read_assignment(run_id: uuid.UUID) -> Assignment:
    with transaction() as session:
        run = session.get_one(Run, run_id)
        assert run.policy_id is not None, "a training run has a policy"
        branch = None
        if run.branch_step is not None:
            source_id = run.source_run_id or run.id  # a deleted source leaves no states
            stored = run.configuration[BRANCH]
            branch = BranchPoint(
                source_run_id=source_id,
                step=run.branch_step,
                checkpoint_id=uuid.UUID(stored["checkpoint_id"]),
                start_id=uuid.UUID(stored["start_id"]),
                source_folder=training_folder(source_id),
            )
        configuration = TrainingConfiguration.of_run(run.configuration)
        return Assignment(
            run_id=run_id,
            policy_id=run.policy_id,
            configuration=configuration,
            envs=training_envs_of(session, run.version_id, configuration),
            folder=training_folder(run_id),
            was_gate_closed=run.summary.get("gate", {}).get("is_open") is False,
            branch=branch,
        )


def training_envs_of(
    session: Session, version_id: uuid.UUID, configuration: TrainingConfiguration
) -> tuple[TrainingEnv, ...]:
    options = (undefer(EnvironmentVersion.files), joinedload(EnvironmentVersion.environment))
    versions = [session.get_one(EnvironmentVersion, version_id, options=options)]
    for part in configuration.mix:
        of_part = (Environment.name == part.environment, EnvironmentVersion.number == part.version)
        version = session.scalars(
            select(EnvironmentVersion).join(EnvironmentVersion.environment).where(*of_part).options(*options)
        ).one_or_none()
        if version is None:
            raise VersionIsGone(f"{part.environment} v{part.version} no longer exists.")
        versions.append(version)
    counts = Counter(version.environment.name for version in versions)
    weights = [1.0, *(part.weight for part in configuration.mix)]
    envs = []
    for position, (version, weight) in enumerate(zip(versions, weights, strict=True)):
        name = version.environment.name
        envs.append(
            TrainingEnv(
                name=name if counts[name] == 1 else f"{name}_v{version.number}",
                version_id=version.id,
                manifest=configuration.played(Manifest.model_validate(version.manifest)),
                content_hash=version.content_hash,
                files=dict(version.files),
                weight=weight,
                tag=version.id if position else None,
            )
        )
    return tuple(envs)
