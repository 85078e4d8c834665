"""Effort scores, their sides and the replies that were cut; what can be scored of a run."""

import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.domain.environments.manifest import Manifest
from backend.domain.studies.effort import obstacle
from backend.domain.vocabulary import PolicyKind, RunKind, RunStatus
from backend.runs.tables import Run
from backend.studies import queries as studies
from backend.studies.queries import checkpoints_until, start_of
from backend.studies.tables import EffortReply, EffortScore, EffortSide


def get_run(session: Session, run_id: uuid.UUID) -> Run:
    return studies.get_run(session, run_id, RunKind.TRAINING, RunKind.EVALUATION)


def obstacle_to(session: Session, run: Run) -> str:
    """Why nothing of this run can be scored, in words; empty: it can."""
    if run.policy is None or run.policy.kind is not PolicyKind.LOCAL:
        return (
            "Only checkpoints that lie here can be scored: the policy has to go on from the middle of its own reply,"
            " and an endpoint or a script begins a new one."
        )
    if told := obstacle(Manifest.model_validate(run.version.manifest).proctor.agent):
        return told
    if run.kind is RunKind.EVALUATION:
        if run.status is not RunStatus.COMPLETED:
            return f"This evaluation is {run.status}: it can be scored once it is completed."
        checkpoint = session.get(Checkpoint, run.checkpoint_id) if run.checkpoint_id else None
        if checkpoint is None:
            return "The checkpoint that played this evaluation is gone."
        return checkpoint.unusable or ""
    return "" if checkpoints_of(session, run) else "No checkpoint of this run's reinforcement has its weights."


def checkpoints_of(session: Session, run: Run) -> Sequence[Checkpoint]:
    """That can be scored, in the order of training."""
    return checkpoints_until(session, run.id) if run.kind is RunKind.TRAINING else ()


def base_of(session: Session, run: Run, own: Checkpoint) -> Checkpoint | None:
    """The policy that the reinforcement of this checkpoint began with; where no training run of it is known or its
    weights are gone, the first checkpoint of the policy that an evaluation was completed of. None: there is no other.
    """
    training = run if run.kind is RunKind.TRAINING else session.get(Run, own.run_id) if own.run_id else None
    start = start_of(session, training) if training is not None and training.kind is RunKind.TRAINING else None
    if start is not None:
        return start if start.id != own.id else None
    statement = (
        select(Checkpoint)
        .join(Run, Run.checkpoint_id == Checkpoint.id)
        .where(
            Run.kind == RunKind.EVALUATION,
            Run.status == RunStatus.COMPLETED,
            Checkpoint.policy_id == own.policy_id,
            Checkpoint.created_at < own.created_at,
            Checkpoint.pruned_at.is_(None),
        )
    )
    return session.scalars(statement.order_by(Checkpoint.created_at).limit(1)).first()


def scores_of(session: Session, run_id: uuid.UUID) -> Sequence[EffortScore]:
    """Newest first."""
    return studies.studies_of(session, EffortScore, run_id)


def get_score(session: Session, run_id: uuid.UUID, score_id: uuid.UUID) -> EffortScore:
    return studies.get_study(session, EffortScore, run_id, score_id)


def sides_of(session: Session, score_ids: Collection[uuid.UUID]) -> Mapping[uuid.UUID, list[EffortSide]]:
    """By score, the base first; each with its evaluation."""
    return studies.studied_by(session, EffortSide, EffortSide.score_id, score_ids)


def replies_of(session: Session, side_ids: Collection[uuid.UUID]) -> Mapping[uuid.UUID, list[EffortReply]]:
    """By side, in the order in which they were cut."""
    statement = select(EffortReply).where(EffortReply.side_id.in_(side_ids)).order_by(EffortReply.id)
    found: defaultdict[uuid.UUID, list[EffortReply]] = defaultdict(list)
    for reply in session.scalars(statement):
        found[reply.side_id].append(reply)
    return found
