"""How an attempt at a training run ends: its status, and the branch that an alarm starts."""

import uuid
from dataclasses import dataclass
from pathlib import Path

import torch
from sqlalchemy import select

from backend.checkpoints.tables import Checkpoint
from backend.core.session import transaction
from backend.domain.training.alarm_kinds import ALARM_KINDS
from backend.domain.training.alarms import action_of
from backend.domain.training.configuration import Stage
from backend.domain.vocabulary import AlarmAction, RunStatus
from backend.errors import Conflict
from backend.runs.service import finish_run
from backend.runs.tables import Run
from backend.training.alarms import roll_back
from backend.training.branches import MOST_IN_A_ROW, depth_of
from backend.training.steering import current_settings
from backend.training.tables import Alarm
from workers.models.read import ModelUnusable
from workers.storage.interventions import lay_down
from workers.storage.steering import AlarmDraft, read_requests, record_alarm
from workers.training.checkpoints import newest_under
from workers.training.examples import BrokenStep

MEMORY_PHRASES = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")
CRASHED_AT = "crashed_at"
"""Key of a run's summary: the newest saved state and checkpoint at its last crash."""


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    """How an attempt ended."""

    status: RunStatus
    reason: str | None = None
    roll_back: uuid.UUID | None = None
    """The alarm after which a branch starts."""


def stopped_on_request(run_id: uuid.UUID) -> TrainingOutcome:
    if read_requests(run_id).pause:
        return TrainingOutcome(
            RunStatus.PAUSED, "Paused on request. Resume the run to continue from its last saved state."
        )
    return TrainingOutcome(
        RunStatus.STOPPED, "Stopped on request. Resume the run to continue from its last saved state."
    )


def is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error).lower() for phrase in MEMORY_PHRASES)


def should_retry(run_id: uuid.UUID, folder: Path, error: Exception) -> bool:
    """Return whether a crashed run made progress since its last crash, and remember where it crashed.

    An error that repeats at the same place would repeat forever.
    """
    if isinstance(error, ModelUnusable | BrokenStep):
        return False
    state = newest_under(folder)
    trained = (Checkpoint.run_id == run_id, Checkpoint.stage != Stage.UNTRAINED)
    newest = select(Checkpoint).where(*trained).order_by(Checkpoint.created_at.desc(), Checkpoint.id.desc()).limit(1)
    with transaction() as session:
        run = session.get_one(Run, run_id)
        checkpoint = session.scalars(newest).first()
        place = [
            str(state.relative_to(folder)) if state else None,
            f"{checkpoint.stage} {checkpoint.step}" if checkpoint else None,
        ]
        if not any(place) or run.summary.get(CRASHED_AT) == place:
            return False
        run.summary = {**run.summary, CRASHED_AT: place}
    return True


def out_of_memory(run_id: uuid.UUID, error: Exception) -> TrainingOutcome:
    """Raise the alarm, and pause or stop the run: the same settings would need the same memory."""
    kind = ALARM_KINDS["out_of_memory"]
    message = " ".join(str(error).split())[:300] or type(error).__name__
    sentence = f"The training process ran out of memory: {message}."
    with transaction() as session:
        run = session.get_one(Run, run_id)
        action = action_of(current_settings(session, run).alarms, kind.name) or AlarmAction.PAUSE
        is_training = run.progress.get("phase") in (Stage.SFT, Stage.GRPO)
        step = int(run.progress.get("done") or 0) if is_training else 0
    record_alarm(run_id, AlarmDraft(kind.name, step, sentence, action, kind.name, step, {}))
    status = RunStatus.STOPPED if action is AlarmAction.STOP else RunStatus.PAUSED
    return TrainingOutcome(status, f"{sentence} {kind.advice}")


def finish(run_id: uuid.UUID, outcome: TrainingOutcome, summary: dict[str, object]) -> TrainingOutcome:
    """Set the run's final status, and start the branch of a rollback in the same transaction."""
    with transaction() as session:
        run = session.get_one(Run, run_id)
        lay_down(session, run)
        if outcome.roll_back is not None:
            try:
                if depth_of(session, run) >= MOST_IN_A_ROW:
                    raise Conflict(f"{MOST_IN_A_ROW} branches in a row ended this way.")
                branch = roll_back(session, None, run, session.get_one(Alarm, outcome.roll_back))
                reason = f"{outcome.reason} Rolled back: {branch.name} continues."
                outcome = TrainingOutcome(outcome.status, reason)
            except Conflict as error:
                reason = f"{outcome.reason} It could not be rolled back: {error.message}"
                outcome = TrainingOutcome(RunStatus.PAUSED, reason)
        finish_run(session, run, outcome.status, summary, outcome.reason)
        return outcome
