"""How an attempt at a training run ends: what becomes of the run's row, and of a branch where an alarm rolls back."""

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sqlalchemy import select
from sqlalchemy.orm import Session

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
from workers.models.load import ModelUnusable
from workers.storage.interventions import mark_interventions_seen
from workers.storage.steering import AlarmDraft, read_requests, record_alarm
from workers.training.context import Ended
from workers.training.examples import BrokenStep
from workers.training.resume import newest_under

_MEMORY_WORDS = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")

_REFUSALS = (ModelUnusable, BrokenStep)
"""Another attempt would be refused for the same reason."""
_STAGES = (Stage.SFT, Stage.GRPO)
CRASHED_AT = "crashed_at"
"""In a run's summary: the newest saved state and the newest checkpoint when it last crashed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended."""

    status: RunStatus
    reason: str | None = None
    roll_back: uuid.UUID | None = None
    """The alarm after which a branch starts."""

    @classmethod
    def of(cls, ended: Ended) -> "Outcome":
        return cls(ended.status, str(ended), ended.roll_back)


def asked_to_stop(run_id: uuid.UUID) -> Outcome:
    """A person asked, and the state is saved."""
    if read_requests(run_id).pause:
        return Outcome(RunStatus.PAUSED, "Paused on request; resume it to go on from its last saved state.")
    return Outcome(RunStatus.STOPPED, "Stopped on request; resume it to go on from its last saved state.")


def is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _MEMORY_WORDS)


def is_worth_another_attempt(run_id: uuid.UUID, folder: Path, error: Exception) -> bool:
    """Does the run go on by itself after a crash? Where it got on since the last one: what fails at the same place
    again would fail for ever. Remembers the crash."""
    if isinstance(error, _REFUSALS):
        return False
    state = newest_under(folder)
    with transaction() as session:
        run = session.get_one(Run, run_id)
        place = [str(state.relative_to(folder)) if state else None, _newest_checkpoint(session, run_id)]
        if not any(place) or run.summary.get(CRASHED_AT) == place:
            return False
        run.summary = {**run.summary, CRASHED_AT: place}
    return True


def _newest_checkpoint(session: Session, run_id: uuid.UUID) -> str | None:
    """Of those that were trained."""
    trained = (Checkpoint.run_id == run_id, Checkpoint.stage != Stage.UNTRAINED)
    newest = select(Checkpoint).where(*trained).order_by(Checkpoint.created_at.desc(), Checkpoint.id.desc()).limit(1)
    row = session.scalars(newest).first()
    return f"{row.stage} {row.step}" if row else None


def out_of_memory(run_id: uuid.UUID, error: Exception) -> Outcome:
    """An alarm, and a pause or a stop: the same again would need as much memory."""
    kind = ALARM_KINDS["out_of_memory"]
    told = " ".join(str(error).split())[:300]
    sentence = f"The training process ran out of memory: {told or type(error).__name__}."
    with transaction() as session:
        run = session.get_one(Run, run_id)
        action = action_of(current_settings(session, run).alarms, kind.name) or AlarmAction.PAUSE
        step = int(run.progress.get("done") or 0) if run.progress.get("phase") in _STAGES else 0
    record_alarm(run_id, AlarmDraft(kind.name, step, sentence, action, kind.name, step, {}))
    status = RunStatus.STOPPED if action is AlarmAction.STOP else RunStatus.PAUSED
    return Outcome(status, f"{sentence} {kind.advice}")


def finish(run_id: uuid.UUID, outcome: Outcome, summary: dict[str, Any]) -> Outcome:
    """Lay the run down, and start the branch in the same transaction."""
    with transaction() as session:
        run = session.get_one(Run, run_id)
        mark_interventions_seen(session, run)
        if outcome.roll_back is None:
            finish_run(session, run, outcome.status, summary, outcome.reason)
            return outcome
        try:
            if depth_of(session, run) >= MOST_IN_A_ROW:
                raise Conflict(f"{MOST_IN_A_ROW} branches in a row ended so.")
            branch = roll_back(session, None, run, session.get_one(Alarm, outcome.roll_back))
            outcome = Outcome(outcome.status, f"{outcome.reason} Rolled back: {branch.name} goes on.")
        except Conflict as error:
            outcome = Outcome(RunStatus.PAUSED, f"{outcome.reason} It could not be rolled back: {error.message}")
        finish_run(session, run, outcome.status, summary, outcome.reason)
        return outcome
