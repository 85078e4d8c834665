"""Read studies, the checkpoints that they sample, and the checkpoints of a run that can be studied."""

import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from backend.checkpoints.tables import Checkpoint
from backend.domain.environments.manifest import Manifest
from backend.domain.studies.effort import why_not_cuttable
from backend.domain.studies.study import StudyKind
from backend.domain.training.configuration import Stage, TrainingConfiguration
from backend.domain.vocabulary import PolicyKind, RunKind, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.errors import NotFound
from backend.operations.ids import find_by_end, parse_id
from backend.runs.tables import Run
from backend.studies.tables import EffortReply, Study, StudyCheckpoint

BRANCH = "branch"
"""Key of a branch's configuration; its `start_id` is the checkpoint that GRPO started from."""
STUDIED_KINDS = {StudyKind.ONSET: (RunKind.TRAINING,), StudyKind.EFFORT: (RunKind.TRAINING, RunKind.EVALUATION)}


def find_study(session: Session, text: str) -> Study:
    """By id or its last characters. Raises NotFound."""
    study_id = parse_id(text) or find_by_end(session, select(Study.id).order_by(Study.id.desc()), Study.id, text)
    study = session.scalar(select(Study).where(Study.id == study_id)) if study_id else None
    if study is None:
        raise NotFound("There is no such study.")
    return study


def get_studied_run(session: Session, run_id: uuid.UUID, *kinds: StudyKind) -> Run:
    """A run with its environment and policy. Raises NotFound for runs of which none of these studies can be made."""
    loaded = joinedload(Run.version).joinedload(EnvironmentVersion.environment), joinedload(Run.policy)
    run = session.scalars(select(Run).options(*loaded).where(Run.id == run_id)).one_or_none()
    supported = {run_kind for kind in kinds or StudyKind for run_kind in STUDIED_KINDS[kind]}
    if run is None or run.kind not in supported:
        raise NotFound(f"There is no such {' or '.join(sorted(f'{kind} run' for kind in supported))}.")
    return run


def list_studies(session: Session, run_id: uuid.UUID, kind: StudyKind | None = None) -> Sequence[Study]:
    """Newest first."""
    statement = select(Study).where(Study.run_id == run_id).order_by(Study.id.desc())
    return session.scalars(statement if kind is None else statement.where(Study.kind == kind)).all()


def checkpoints_of_studies(
    session: Session, study_ids: Collection[uuid.UUID]
) -> Mapping[uuid.UUID, list[StudyCheckpoint]]:
    """By study, with their evaluations: the base first, then in the order of training."""
    statement = select(StudyCheckpoint).options(joinedload(StudyCheckpoint.run))
    statement = statement.where(StudyCheckpoint.study_id.in_(study_ids))
    checkpoints: defaultdict[uuid.UUID, list[StudyCheckpoint]] = defaultdict(list)
    if study_ids:
        for each in session.scalars(statement.order_by(StudyCheckpoint.is_base.desc(), StudyCheckpoint.step)):
            checkpoints[each.study_id].append(each)
    return checkpoints


def replies_of(session: Session, checkpoint_ids: Collection[uuid.UUID]) -> Mapping[uuid.UUID, list[EffortReply]]:
    """By study checkpoint, in the order in which they were cut."""
    statement = select(EffortReply).where(EffortReply.study_checkpoint_id.in_(checkpoint_ids)).order_by(EffortReply.id)
    replies: defaultdict[uuid.UUID, list[EffortReply]] = defaultdict(list)
    if checkpoint_ids:
        for reply in session.scalars(statement):
            replies[reply.study_checkpoint_id].append(reply)
    return replies


def start_of(session: Session, run: Run) -> Checkpoint | None:
    """The policy that a training run's GRPO starts from; for a branch, the one of the run that it goes back to.

    After an SFT warm-up, this is the SFT checkpoint whose held-out rollouts are stored. Returns None if the warm-up has
    not selected one yet, or if its weights were deleted.
    """
    if start_id := (run.configuration.get(BRANCH) or {}).get("start_id"):
        start = session.get(Checkpoint, uuid.UUID(start_id))
    else:
        statement = select(Checkpoint).where(Checkpoint.run_id == run.id)
        if TrainingConfiguration.of_run(run.configuration).recipe.has_sft:
            is_selected = Checkpoint.heldout["training_step"].astext.is_not(None)
            statement = statement.where(Checkpoint.stage == Stage.SFT, is_selected)
        else:
            statement = statement.where(Checkpoint.stage == Stage.UNTRAINED)
        start = session.scalars(statement.order_by(Checkpoint.step.desc()).limit(1)).first()
    return start if start is not None and start.pruned_at is None else None


def checkpoints_until(
    session: Session, run_id: uuid.UUID, last_step: int | None = None, *, sampled: Collection[uuid.UUID] = ()
) -> list[Checkpoint]:
    """GRPO checkpoints in the order of training that have weights or are in `sampled`."""
    statement = select(Checkpoint).where(Checkpoint.run_id == run_id, Checkpoint.stage == Stage.GRPO)
    if last_step is not None:
        statement = statement.where(Checkpoint.step <= last_step)
    rows = session.scalars(statement.order_by(Checkpoint.step))
    return [row for row in rows if row.pruned_at is None or row.id in sampled]


def why_no_effort_study(session: Session, run: Run) -> str:
    """Why no effort study of this run is possible, in a sentence; empty if one is."""
    if run.policy is None or run.policy.kind is not PolicyKind.LOCAL:
        return (
            "Effort studies need a checkpoint that is stored here: the policy continues from the middle of its own"
            " reply, and an endpoint or a scripted policy starts a new one."
        )
    if reason := why_not_cuttable(Manifest.model_validate(run.version.manifest).proctor.agent):
        return reason
    if run.kind is RunKind.TRAINING:
        return "" if checkpoints_until(session, run.id) else "No GRPO checkpoint of this run has its weights."
    if run.status is not RunStatus.COMPLETED:
        return f"This evaluation is {run.status}. Study it when it is completed."
    checkpoint = session.get(Checkpoint, run.checkpoint_id) if run.checkpoint_id else None
    return "The checkpoint of this evaluation was deleted." if checkpoint is None else checkpoint.unusable or ""


def base_of(session: Session, run: Run, own: Checkpoint) -> Checkpoint | None:
    """The policy that the checkpoint's GRPO started from.

    If its training run is unknown or the weights were deleted, the policy's first checkpoint with a completed
    evaluation. Returns None if there is no other checkpoint.
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
