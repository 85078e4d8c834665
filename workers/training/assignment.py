"""All that a training process needs to know of its run, read once."""

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload, undefer

from backend.core.session import transaction
from backend.domain.environments.manifest import Manifest, RewardColumn
from backend.domain.rollouts.rollout import Rollout
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.mix import MixPart, union_columns
from backend.environments.tables import Environment, EnvironmentVersion
from backend.runs.tables import Run
from backend.settings import get_settings
from backend.studies.queries import BRANCH
from workers.training.branching import BranchPoint
from workers.training.planning.training_env import TrainingEnv


@dataclass(frozen=True, slots=True)
class Assignment:
    """A training run."""

    run_id: uuid.UUID
    policy_id: uuid.UUID
    """The policy that is trained."""
    configuration: TrainingConfiguration
    envs: tuple[TrainingEnv, ...]
    """What it plays: its own environment version first, then those of its mix."""
    folder: Path
    """Where this machine keeps what a resume needs."""
    was_gate_closed: bool
    """An earlier attempt paused at the gate, and a person resumed it."""
    branch: BranchPoint | None = None
    """Where it goes on from another run."""

    @property
    def version_id(self) -> uuid.UUID:
        """Of the run's own environment."""
        return self.envs[0].version_id

    def player_of(self, step: int) -> uuid.UUID:
        """The run that played this GRPO step: of a branch, the one that it goes on from."""
        if self.branch is not None and step <= self.branch.step:
            return self.branch.source_run_id
        return self.run_id

    @property
    def manifest(self) -> Manifest:
        """Of the run's own environment."""
        return self.envs[0].manifest

    @property
    def columns(self) -> list[RewardColumn]:
        """Of all environments, in the order of the run's row."""
        return union_columns(env.manifest for env in self.envs)

    def columns_of(self, rollout: Rollout) -> list[RewardColumn]:
        """Of the rollout's own environment."""
        return next(env.manifest.columns for env in self.envs if env.tag == rollout.task.version_id)

    @property
    def is_mixed(self) -> bool:
        return len(self.envs) > 1


class NoPolicy(RuntimeError):
    """The run trains no policy."""


class VersionIsGone(RuntimeError):
    """An environment version of the run's mix is not there any more."""


def read_assignment(run_id: uuid.UUID) -> Assignment:
    with transaction() as session:
        run = session.get_one(Run, run_id)
        if run.policy_id is None:
            raise NoPolicy
        configuration = TrainingConfiguration.of_run(run.configuration)
        return Assignment(
            run_id=run_id,
            policy_id=run.policy_id,
            configuration=configuration,
            envs=training_envs_of(session, run.version_id, configuration.mix),
            folder=get_settings().data / "training" / str(run_id),
            was_gate_closed=run.summary.get("gate", {}).get("is_open") is False,
            branch=_branch_point(run),
        )


def _branch_point(run: Run) -> BranchPoint | None:
    if run.branch_step is None:
        return None
    source_id = run.source_run_id or run.id  # a source that was deleted leaves no states
    folder = get_settings().data / "training" / str(source_id)
    return BranchPoint.of(run.configuration[BRANCH], source_id, run.branch_step, folder)


def training_envs_of(session: Session, version_id: uuid.UUID, mix: Sequence[MixPart]) -> tuple[TrainingEnv, ...]:
    options = (undefer(EnvironmentVersion.files), joinedload(EnvironmentVersion.environment))
    versions = [session.get_one(EnvironmentVersion, version_id, options=options)]
    for part in mix:
        wanted = (Environment.name == part.environment, EnvironmentVersion.number == part.version)
        found = session.scalars(
            select(EnvironmentVersion).join(EnvironmentVersion.environment).where(*wanted).options(*options)
        ).one_or_none()
        if found is None:
            raise VersionIsGone(f"There is no {part.environment} v{part.version} any more.")
        versions.append(found)
    names = Counter(version.environment.name for version in versions)
    weights = [1.0, *(part.weight for part in mix)]
    return tuple(
        TrainingEnv(
            name=_name(version, is_alone=names[version.environment.name] == 1),
            version_id=version.id,
            manifest=Manifest.model_validate(version.manifest),
            content_hash=version.content_hash,
            files=dict(version.files),
            weight=weight,
            tag=version.id if place else None,
        )
        for place, (version, weight) in enumerate(zip(versions, weights, strict=True))
    )


def _name(version: EnvironmentVersion, *, is_alone: bool) -> str:
    return version.environment.name if is_alone else f"{version.environment.name}_v{version.number}"
