"""Storage of a training run between two steps: requests of people, changed settings, alarms."""

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import orjson
from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert

from backend.core.events import announce, run_topic
from backend.core.session import transaction
from backend.domain.detectors.spec import Action
from backend.domain.ids import new_id
from backend.domain.notifications.notices import NoticeKind
from backend.domain.text import json_text, plain_text
from backend.domain.training.alarm_kinds import ALARM_KINDS
from backend.domain.training.alarms import CLEARED, INTERVENTION
from backend.domain.vocabulary import AlarmAction, RunStatus
from backend.notifications import outbox
from backend.runs.service import PAUSE_REQUESTED
from backend.runs.tables import Run
from backend.training.tables import Alarm, Intervention, SettingChange

ENDINGS = {AlarmAction.PAUSE: "paused", AlarmAction.STOP: "stopped", AlarmAction.ROLL_BACK: "rolled back"}
"""Actions that end the process, as notices describe them."""
EACH_TIME = frozenset({"not_finite", "stall", "out_of_memory", "process_killed"})
"""Alarms about failures: the run cannot continue, whether or not a person saw an earlier one."""
CONDITION = "condition"
"""Key of an alarm's evidence: a condition that lasts and ends at some time, such as `column_fall/invalid_move`."""


@dataclass(frozen=True, slots=True)
class SteeringRequests:
    stop: bool
    pause: bool
    """The stop is meant as a pause."""
    changes: frozenset[str]
    """Settings that wait to be applied."""


@dataclass(frozen=True, slots=True)
class ClaimedChange:
    """The value of a setting from a step on."""

    name: str
    before: Any
    after: Any
    step: int


@dataclass(frozen=True, slots=True)
class AlarmDraft:
    """An alarm that is not stored yet."""

    name: str
    step: int
    sentence: str
    action: AlarmAction
    condition: str
    onset: int
    """The last step before the problem."""
    evidence: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RecordedAlarm:
    id: uuid.UUID
    is_new: bool


def read_requests(run_id: uuid.UUID) -> SteeringRequests:
    """Read the requests in one query, because it runs between all steps."""
    of_run = (SettingChange.run_id == run_id, SettingChange.step.is_(None))
    waiting = select(func.array_agg(SettingChange.name)).where(*of_run).scalar_subquery()
    pause = Run.summary[PAUSE_REQUESTED].as_boolean()
    with transaction() as session:
        requested_at, status, is_pause, changes = session.execute(
            select(Run.stop_requested_at, Run.status, pause, waiting).where(Run.id == run_id)
        ).one()
    is_stop = requested_at is not None or status is RunStatus.STOPPED
    return SteeringRequests(is_stop, bool(is_pause), frozenset(changes or ()))


def claimed_changes(run_id: uuid.UUID) -> list[ClaimedChange]:
    """Return all applied changes, including changes that an earlier attempt applied after the state that this one
    resumes from."""
    statement = select(SettingChange).where(SettingChange.run_id == run_id, SettingChange.step.is_not(None))
    with transaction() as session:
        rows = session.scalars(statement.order_by(SettingChange.id))
        return [ClaimedChange(row.name, row.before, row.after, row.step) for row in rows if row.step is not None]


def claim_changes(run_id: uuid.UUID, step_of: Callable[[str], int | None]) -> list[ClaimedChange]:
    """Apply waiting changes from the step that `step_of` returns for their setting; None: the change keeps waiting."""
    waiting = select(SettingChange).where(SettingChange.run_id == run_id, SettingChange.step.is_(None))
    with transaction() as session:
        rows = session.scalars(waiting.order_by(SettingChange.id).with_for_update()).all()
        for row in rows:
            row.step = step_of(row.name)
        announce(session, run_topic(run_id))
        return [ClaimedChange(row.name, row.before, row.after, row.step) for row in rows if row.step is not None]


def active_alarms(run_id: uuid.UUID, first: int, last: int) -> dict[str, int]:
    """Return alarms of these steps whose condition lasts, answered or not, with the latest step of each."""
    of_steps = (Alarm.run_id == run_id, Alarm.step.between(first, last))
    with transaction() as session:
        rows = session.scalars(select(Alarm).where(*of_steps).order_by(Alarm.step)).all()
    return {row.name: row.step for row in rows if CLEARED not in row.evidence}


def record_alarm(run_id: uuid.UUID, draft: AlarmDraft, changes: Iterable[ClaimedChange] = ()) -> RecordedAlarm:
    """Store an alarm with the settings that it changes, and notify people if it ends the process.

    After a resume the same alarm is recognized. An alarm of `EACH_TIME` is recognized only while it is open, so that it
    can be answered each time.
    """
    kind = ALARM_KINDS[draft.name]
    evidence = {**draft.evidence, CONDITION: draft.condition, "onset": draft.onset}
    evidence |= {"formula": kind.formula, "source": kind.source}
    same = (Alarm.run_id == run_id, Alarm.name == draft.name, Alarm.step == draft.step)
    with transaction() as session:
        for known in session.scalars(select(Alarm).where(*same)):
            is_open = known.answer is None and CLEARED not in known.evidence
            if known.evidence.get(CONDITION) == draft.condition and (is_open or draft.name not in EACH_TIME):
                return RecordedAlarm(known.id, is_new=False)
        alarm = Alarm(
            run_id=run_id,
            name=draft.name,
            step=draft.step,
            sentence=plain_text(draft.sentence),
            evidence=orjson.loads(json_text(evidence)),
            action=draft.action,
        )
        session.add(alarm)
        session.flush()
        session.add_all(SettingChange(run_id=run_id, alarm_id=alarm.id, **asdict(change)) for change in changes)
        is_intervention = alarm.name == INTERVENTION
        if alarm.action in ENDINGS and is_intervention:
            values = {
                "id": new_id(),
                "run_id": run_id,
                "step": alarm.step,
                "detector": alarm.evidence["detector"],
                "action": Action(alarm.evidence["on_flag"]),
                "rollouts": len(alarm.evidence.get("rollouts") or ()),
                "sentence": alarm.sentence,
                "alarm_id": alarm.id,
            }
            session.execute(insert(Intervention).values(values).on_conflict_do_nothing())
        if alarm.action in ENDINGS:
            name = session.get_one(Run, run_id).name
            outbox.announce(
                session,
                kind=NoticeKind.INTERVENTION if is_intervention else NoticeKind.ALARM,
                title=f"{name} was {ENDINGS[alarm.action]} after step {alarm.step}: {kind.title}",
                text=f"{alarm.sentence} {kind.advice}",
                path=f"/runs/{run_id}/alarms#alarm-{alarm.id}",
                run_id=run_id,
                evidence=alarm.evidence,
            )
        announce(session, run_topic(run_id))
        return RecordedAlarm(alarm.id, is_new=True)


def clear_alarms(run_id: uuid.UUID, conditions: Iterable[str], step: int) -> None:
    """Record the step at which the conditions of open alarms ended."""
    ended = set(conditions)
    with transaction() as session:
        for alarm in session.scalars(select(Alarm).where(Alarm.run_id == run_id)):
            if alarm.evidence.get(CONDITION) in ended and CLEARED not in alarm.evidence:
                alarm.evidence = {**alarm.evidence, CLEARED: step}
        announce(session, run_topic(run_id))
