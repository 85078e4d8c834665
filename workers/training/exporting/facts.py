"""What the model card of an export says, read from the database at one moment."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import joinedload

from backend.checkpoints.tables import Checkpoint
from backend.core.session import transaction
from backend.domain.environments.manifest import Manifest
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import RunKind, RunStatus
from backend.environments.tables import Environment, EnvironmentVersion
from backend.policies.tables import Policy
from backend.review.safeguards import Safeguards, safeguards_of
from backend.rollouts.tables import Rollout as RolloutRow
from backend.runs.tables import Run

MOST_EVALUATIONS = 12


@dataclass(frozen=True, slots=True)
class CardFacts:
    """All that the card says, read at one moment."""

    policy: str
    run_id: uuid.UUID
    run_name: str
    environment: str
    version: int
    content_hash: str
    manifest: Manifest
    configuration: TrainingConfiguration
    checkpoint: Checkpoint
    checkpoints: Sequence[Checkpoint]
    """The run's examined ones, in order."""
    rollouts: Mapping[str, int]
    """Episodes by phase."""
    evaluations: Sequence[tuple[str, Mapping[str, Any]]]
    """(policy, reward) of finished evaluations on the same version."""
    safeguards: Safeguards
    """The run's report."""


def read_facts(checkpoint_id: uuid.UUID) -> CardFacts:
    with transaction() as session:
        checkpoint = session.get_one(Checkpoint, checkpoint_id, options=[joinedload(Checkpoint.policy)])
        run = session.get_one(Run, checkpoint.run_id)
        version = session.get_one(EnvironmentVersion, run.version_id)
        of_run = RolloutRow.run_id == run.id
        examined = Checkpoint.run_id == run.id, Checkpoint.heldout_reward.is_not(None)
        counts = select(RolloutRow.phase, func.count()).where(of_run).group_by(RolloutRow.phase)
        evaluations = (
            select(Policy.name, Run.summary)
            .join(Policy, Policy.id == Run.policy_id)
            .where(Run.kind == RunKind.EVALUATION, Run.status == RunStatus.COMPLETED, Run.version_id == run.version_id)
            .order_by(Run.created_at.desc())
            .limit(MOST_EVALUATIONS)
        )
        return CardFacts(
            policy=checkpoint.policy.name,
            run_id=run.id,
            run_name=run.name,
            environment=session.get_one(Environment, version.environment_id).name,
            version=version.number,
            content_hash=version.content_hash,
            manifest=Manifest.model_validate(version.manifest),
            configuration=TrainingConfiguration.of_run(run.configuration),
            checkpoint=checkpoint,
            checkpoints=session.scalars(select(Checkpoint).where(*examined).order_by(Checkpoint.created_at)).all(),
            rollouts={str(phase): count for phase, count in session.execute(counts)},
            evaluations=[
                (name, summary["reward"]) for name, summary in session.execute(evaluations) if summary.get("reward")
            ],
            safeguards=safeguards_of(session, run.id),
        )
