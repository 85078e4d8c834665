"""Alarms of a training run as rows: listed, answered by a person. What raises them is in `workers.training.alarms`."""

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from backend.core.events import announce, run_topic
from backend.domain.training.alarm_kinds import ALARM_KINDS
from backend.domain.training.steering import LEARNING_RATE, WARM_UP_RATE
from backend.domain.vocabulary import AlarmAnswer
from backend.errors import Conflict, NotFound
from backend.runs.notes import Asker, note
from backend.runs.service import request_stop
from backend.runs.tables import Run
from backend.training.branches import Onto, rate_after, start_branch
from backend.training.steering import (
    good_checkpoint,
    is_of_the_warm_up,
    lower_rate,
    may_steer,
    offered_answers,
    request_pause,
    save_memory,
)
from backend.training.tables import Alarm

_AGAINST_KINDS = frozenset({AlarmAnswer.LOWER_RATE, AlarmAnswer.ROLL_BACK, AlarmAnswer.SAVE_MEMORY})
"""Answers that help against some kinds of alarms."""


class AlreadyAnswered(Conflict):
    """Somebody answered this alarm already."""


class DoesNotHelp(Conflict):
    """This answer does nothing about the alarm."""


class NothingToRollBackTo(Conflict):
    """No checkpoint was saved before this trouble began, or its weights were deleted."""


def alarms_of(session: Session, run_id: uuid.UUID) -> Sequence[Alarm]:
    """Newest first, each with who answered."""
    statement = select(Alarm).options(joinedload(Alarm.answerer)).where(Alarm.run_id == run_id)
    return session.scalars(statement.order_by(Alarm.id.desc())).all()


def get_alarm(session: Session, run: Run, alarm_id: uuid.UUID) -> Alarm:
    alarm = session.get(Alarm, alarm_id, options=[joinedload(Alarm.answerer)])
    if alarm is None or alarm.run_id != run.id:
        raise NotFound("There is no such alarm of this run.")
    return alarm


def answer_alarm(
    session: Session,
    actor: Asker,
    run: Run,
    alarm_id: uuid.UUID,
    answer: AlarmAnswer,
    *,
    onto: Onto | None = None,
) -> Run | None:
    """Do what a person decided about an alarm, and remember it. Returns the branch that a roll back starts."""
    may_steer(actor, run)
    alarm = get_alarm(session, run, alarm_id)
    session.refresh(alarm, ["answer"], with_for_update=True)
    if alarm.answer is not None:
        raise AlreadyAnswered
    _must_help(session, run, alarm, answer)
    branch = _carry_out(session, actor, run, alarm, answer, onto)
    alarm.answer, alarm.answered_by, alarm.answered_at = answer, actor.person_id, datetime.now(UTC)
    note(session, actor, "alarm.answer", "run", run.id, name=run.name, alarm=alarm.name, answer=str(answer))
    session.flush()
    announce(session, run_topic(run.id))
    return branch


def roll_back(session: Session, actor: Asker | None, run: Run, alarm: Alarm, *, onto: Onto | None = None) -> Run:
    """A branch from the last good checkpoint before the alarm's trouble began. With another version of the environment
    the rate stays: the reward was at fault, not the rate."""
    checkpoint = good_checkpoint(session, run, alarm)
    if checkpoint is None:
        raise NothingToRollBackTo
    changes = {} if onto else rate_after(session, run, checkpoint)
    return start_branch(session, actor, run, checkpoint, changes, onto=onto)


def _must_help(session: Session, run: Run, alarm: Alarm, answer: AlarmAnswer) -> None:
    """Raises DoesNotHelp for an answer that would do nothing about it."""
    offered = [each.answer for each in offered_answers(session, run, [alarm])[alarm.id]]
    if answer in _AGAINST_KINDS and answer not in offered:
        if answer is AlarmAnswer.ROLL_BACK and answer in ALARM_KINDS[alarm.name].answers:
            raise NothingToRollBackTo
        title, others = ALARM_KINDS[alarm.name].title, ", ".join(offered)
        raise DoesNotHelp(f"{answer} does nothing about the alarm {title!r} as the run is. What does: {others}.")


def _carry_out(
    session: Session, actor: Asker, run: Run, alarm: Alarm, answer: AlarmAnswer, onto: Onto | None
) -> Run | None:
    match answer:
        case AlarmAnswer.LOWER_RATE:
            name = WARM_UP_RATE if is_of_the_warm_up(alarm) else LEARNING_RATE
            lower_rate(session, actor, run, name, alarm_id=alarm.id)
        case AlarmAnswer.PAUSE:
            request_pause(session, actor, run)
        case AlarmAnswer.STOP:
            request_stop(session, actor, run)
        case AlarmAnswer.ROLL_BACK:
            branch = roll_back(session, actor, run, alarm, onto=onto)
            if not run.status.is_over:
                request_stop(session, actor, run)
            return branch
        case AlarmAnswer.SAVE_MEMORY:
            save_memory(session, actor, run, alarm_id=alarm.id)
        case AlarmAnswer.DISMISS:
            pass
    return None
