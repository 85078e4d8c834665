"""Studies of a run, what plays for them, and which checkpoints of a training run can."""

import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from sqlalchemy import select
from sqlalchemy.orm import InstrumentedAttribute, Session, joinedload

from backend.checkpoints.tables import Checkpoint
from backend.domain.training.configuration import Stage, TrainingConfiguration
from backend.domain.vocabulary import RunKind
from backend.environments.tables import EnvironmentVersion
from backend.errors import NotFound
from backend.runs.tables import Run
from backend.studies.tables import StudiedCheckpoint, Study

S = TypeVar("S", bound=Study)
C = TypeVar("C", bound=StudiedCheckpoint)
BRANCH = "branch"
"""Key of a branch's configuration; its `start_id` is the checkpoint that reinforcement began with."""


def get_run(session: Session, run_id: uuid.UUID, *kinds: RunKind) -> Run:
    """With its environment and policy. Raises NotFound for other kinds: they have nothing to be studied."""
    loaded = joinedload(Run.version).joinedload(EnvironmentVersion.environment), joinedload(Run.policy)
    run = session.scalars(select(Run).options(*loaded).where(Run.id == run_id)).one_or_none()
    if run is None or run.kind not in kinds:
        raise NotFound(f"There is no such {' or '.join(f'{kind} run' for kind in kinds)}.")
    return run


def studies_of(session: Session, rows: type[S], run_id: uuid.UUID) -> Sequence[S]:
    """Newest first."""
    return session.scalars(select(rows).where(rows.run_id == run_id).order_by(rows.id.desc())).all()


def get_study(session: Session, rows: type[S], run_id: uuid.UUID, study_id: uuid.UUID) -> S:
    study = session.get(rows, study_id)
    if study is None or study.run_id != run_id:
        raise NotFound(f"This run has no such {rows.noun}.")
    return study


def studied_by(
    session: Session, rows: type[C], of: InstrumentedAttribute[uuid.UUID], study_ids: Collection[uuid.UUID]
) -> Mapping[uuid.UUID, list[C]]:
    """By study, the base first, then in the order of training; each with its evaluation."""
    statement = select(of, rows).options(joinedload(rows.run)).where(of.in_(study_ids))
    found: defaultdict[uuid.UUID, list[C]] = defaultdict(list)
    for study_id, checkpoint in session.execute(statement.order_by(rows.is_base.desc(), rows.step)):
        found[study_id].append(checkpoint)
    return found


def start_of(session: Session, run: Run) -> Checkpoint | None:
    """The policy that reinforcement begins with, of a branch that of the run it goes back to. None without weights, and
    while the warm-up chose none: of its checkpoints it is the one whose held-out rollouts are stored."""
    if start_id := (run.configuration.get(BRANCH) or {}).get("start_id"):
        found = session.get(Checkpoint, uuid.UUID(start_id))
    else:
        statement = select(Checkpoint).where(Checkpoint.run_id == run.id)
        if TrainingConfiguration.of_run(run.configuration).recipe.has_sft:
            is_chosen = Checkpoint.heldout["training_step"].astext.is_not(None)
            statement = statement.where(Checkpoint.stage == Stage.SFT, is_chosen)
        else:
            statement = statement.where(Checkpoint.stage == Stage.UNTRAINED)
        found = session.scalars(statement.order_by(Checkpoint.step.desc()).limit(1)).first()
    return found if found is not None and found.pruned_at is None else None


def checkpoints_until(
    session: Session, run_id: uuid.UUID, last_step: int | None = None, *, sampled: Collection[uuid.UUID] = ()
) -> list[Checkpoint]:
    """Of reinforcement, in the order of training: those that have weights or were sampled while they had."""
    statement = select(Checkpoint).where(Checkpoint.run_id == run_id, Checkpoint.stage == Stage.GRPO)
    if last_step is not None:
        statement = statement.where(Checkpoint.step <= last_step)
    rows = session.scalars(statement.order_by(Checkpoint.step))
    return [row for row in rows if row.pruned_at is None or row.id in sampled]


def checkpoint_name(stage: str, step: int) -> str:
    return f"step {step}" if stage == Stage.GRPO else f"{stage} {step}".strip()
