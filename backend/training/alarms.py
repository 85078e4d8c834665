"""Alarms of a training run: listing them, offering answers that have an effect, answering.

`workers.training.alarms` raises them.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from backend.checkpoints.tables import Checkpoint
from backend.core.events import announce, topic_of
from backend.domain.training.alarm_kinds import ALARM_KINDS
from backend.domain.training.alarms import INTERVENTION
from backend.domain.training.configuration import Stage
from backend.domain.training.steering import LEARNING_RATE, PARTS, WARM_UP_RATE, memory_saved
from backend.domain.vocabulary import AlarmAnswer, RunStatus
from backend.errors import Conflict, NotFound
from backend.runs.service import request_stop, resume_run
from backend.runs.tables import Run
from backend.studies.queries import start_of
from backend.training.branches import BranchVersion, rate_after, start_branch
from backend.training.steering import (
    change_settings,
    current_settings,
    is_in_warm_up,
    lower_rate,
    require_trainer,
)
from backend.training.tables import Alarm
from backend.web.audit import Requester, audit

PREPARED = "branch"
"""Key of an alarm's evidence: {checkpoint_id, stage, step} of the branch that one click starts."""


class AlreadyAnswered(Conflict):
    """This alarm was already answered."""


class DoesNotHelp(Conflict):
    """This answer has no effect on the alarm."""


class NothingToRollBackTo(Conflict):
    """No checkpoint was saved before the problem began, or its weights were deleted."""


@dataclass(frozen=True, slots=True)
class OfferedAnswer:
    """An answer to an alarm that has an effect in the current state of the run."""

    answer: AlarmAnswer
    label: str
    confirm: str = ""
    """A question to ask first."""


def list_alarms(session: Session, run_id: uuid.UUID) -> Sequence[Alarm]:
    """The alarms of a run with who answered them, newest first."""
    statement = select(Alarm).options(joinedload(Alarm.answerer)).where(Alarm.run_id == run_id)
    return session.scalars(statement.order_by(Alarm.id.desc())).all()


def get_alarm(session: Session, run: Run, alarm_id: uuid.UUID) -> Alarm:
    alarm = session.get(Alarm, alarm_id, options=[joinedload(Alarm.answerer)])
    if alarm is None or alarm.run_id != run.id:
        raise NotFound("This run has no such alarm.")
    return alarm


def rollback_points(session: Session, run: Run) -> tuple[Sequence[Checkpoint], Checkpoint | None]:
    """Checkpoints of a run that have their weights: those from GRPO, and the policy at the start of GRPO."""
    of_run = (Checkpoint.run_id == run.id, Checkpoint.stage == Stage.GRPO, Checkpoint.pruned_at.is_(None))
    return session.scalars(select(Checkpoint).where(*of_run)).all(), start_of(session, run)


def good_checkpoint(
    session: Session,
    run: Run,
    alarm: Alarm,
    points: tuple[Sequence[Checkpoint], Checkpoint | None] | None = None,
) -> Checkpoint | None:
    """The checkpoint that a roll back from this alarm continues from: the prepared one while it has its weights, else
    the best by held-out reward of `points` from before the problem began. They are read if they are not given."""
    if prepared := alarm.evidence.get(PREPARED):
        checkpoint = session.get(Checkpoint, uuid.UUID(prepared["checkpoint_id"]))
        if checkpoint is not None and checkpoint.pruned_at is None:
            return checkpoint
    saved, start = points or rollback_points(session, run)
    onset = alarm.evidence.get("onset")
    last = alarm.step if onset is None else int(onset)
    sound = [row for row in saved if row.step <= last]
    if not sound:
        return start
    return max(sound, key=lambda row: (row.heldout_reward is not None, row.heldout_reward or 0.0, row.step))


def offered_answers(session: Session, run: Run, alarms: Sequence[Alarm]) -> dict[uuid.UUID, list[OfferedAnswer]]:
    """By alarm: the answers that help against its kind and have an effect in the current state of the run."""
    if not alarms:
        return {}
    settings, warms_up = current_settings(session, run), is_in_warm_up(session, run)
    points = rollback_points(session, run)
    has_grpo, continues = settings.recipe.has_grpo, run.status is not RunStatus.COMPLETED
    always = [OfferedAnswer(AlarmAnswer.DISMISS, "Dismiss")]
    if not run.status.is_over:
        always = [OfferedAnswer(AlarmAnswer.PAUSE, "Pause"), OfferedAnswer(AlarmAnswer.STOP, "Stop"), *always]

    def offer(answer: AlarmAnswer, alarm: Alarm) -> OfferedAnswer | None:
        is_of_warm_up = str(alarm.evidence.get("curve", "")).startswith("sft/")  # its step is one of the warm-up
        if answer is AlarmAnswer.LOWER_RATE:
            if is_of_warm_up:
                return OfferedAnswer(answer, "Lower the SFT learning rate") if warms_up else None
            return OfferedAnswer(answer, "Lower the learning rate") if continues and has_grpo else None
        if answer is AlarmAnswer.ROLL_BACK and has_grpo and not warms_up and not is_of_warm_up:
            good = good_checkpoint(session, run, alarm, points)
            if good is None:
                return None
            place = f"{good.stage} step {good.step}"
            which = "the last honest checkpoint" if alarm.name == INTERVENTION else "the last good checkpoint"
            stops = "" if run.status.is_over else " This run stops."
            label = f"Roll back to {place}" if PREPARED in alarm.evidence else "Roll back"
            return OfferedAnswer(answer, label, f"Branch from {which}, {place}, with a lower learning rate?{stops}")
        if answer is AlarmAnswer.SAVE_MEMORY and continues and run.can_resume:
            saved = memory_saved(settings, is_in_warm_up=warms_up)
            how = f"Use {saved[PARTS]} micro-batches" if PARTS in saved else "Use gradient checkpointing"
            return OfferedAnswer(answer, f"{how} and resume") if saved else None
        return None

    return {
        alarm.id: [each for answer in ALARM_KINDS[alarm.name].answers if (each := offer(answer, alarm))] + always
        for alarm in alarms
    }


def answer_alarm(
    session: Session,
    actor: Requester,
    run: Run,
    alarm_id: uuid.UUID,
    answer: AlarmAnswer,
    *,
    onto: BranchVersion | None = None,
) -> Run | None:
    """Act on an alarm and record the answer. Returns the branch that a roll back starts."""
    require_trainer(actor, run)
    alarm = get_alarm(session, run, alarm_id)
    session.refresh(alarm, ["answer"], with_for_update=True)
    if alarm.answer is not None:
        raise AlreadyAnswered
    offered = [each.answer for each in offered_answers(session, run, [alarm])[alarm.id]]
    kind, branch = ALARM_KINDS[alarm.name], None
    needs_offer = answer in (AlarmAnswer.LOWER_RATE, AlarmAnswer.ROLL_BACK, AlarmAnswer.SAVE_MEMORY)
    if needs_offer and answer not in offered:
        if answer is AlarmAnswer.ROLL_BACK and answer in kind.answers:
            raise NothingToRollBackTo
        others = ", ".join(offered)
        raise DoesNotHelp(f"{answer} has no effect on the alarm {kind.title!r} now. Use one of: {others}.")
    match answer:
        case AlarmAnswer.LOWER_RATE:
            name = WARM_UP_RATE if str(alarm.evidence.get("curve", "")).startswith("sft/") else LEARNING_RATE
            lower_rate(session, actor, run, name, alarm_id=alarm.id)
        case AlarmAnswer.PAUSE:
            request_stop(session, actor, run, is_pause=True)
        case AlarmAnswer.STOP:
            request_stop(session, actor, run)
        case AlarmAnswer.ROLL_BACK:
            branch = roll_back(session, actor, run, alarm, onto=onto)
            if not run.status.is_over:
                request_stop(session, actor, run)
        case AlarmAnswer.SAVE_MEMORY:
            saved = memory_saved(current_settings(session, run), is_in_warm_up=is_in_warm_up(session, run))
            change_settings(session, actor, run, saved, alarm_id=alarm.id)
            resume_run(session, actor, run)
    alarm.answer, alarm.answered_by, alarm.answered_at = answer, actor.person_id, datetime.now(UTC)
    audit(session, actor, "alarm.answer", "run", run.id, name=run.name, alarm=alarm.name, answer=str(answer))
    session.flush()
    announce(session, topic_of("run", run.id))
    return branch


def roll_back(
    session: Session, actor: Requester | None, run: Run, alarm: Alarm, *, onto: BranchVersion | None = None
) -> Run:
    """Branch from the last good checkpoint before the problem began, with a lower learning rate. With another version
    of the environment the learning rate stays: the reward was at fault."""
    checkpoint = good_checkpoint(session, run, alarm)
    if checkpoint is None:
        raise NothingToRollBackTo
    changes = {} if onto else rate_after(session, run, checkpoint)
    return start_branch(session, actor, run, checkpoint, changes, onto=onto)
