"""What a run that trains reads and writes between two steps: requests of people, changed settings, alarms."""

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

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

_ENDING = frozenset({AlarmAction.PAUSE, AlarmAction.STOP, AlarmAction.ROLL_BACK})
EACH_TIME = frozenset({"not_finite", "stall", "out_of_memory", "process_killed"})
"""Alarms of what cannot go on, whether or not somebody saw it before."""
CONDITION = "condition"
"""Key of an alarm's evidence: what lasts and is over some time; `column_fall/invalid_move`."""


@dataclass(frozen=True, slots=True)
class Requests:
    """What people ask of the run now."""

    stop: bool
    pause: bool
    """The stop is meant as a pause."""
    changes: frozenset[str]
    """Settings that wait to be taken up."""


@dataclass(frozen=True, slots=True)
class ClaimedChange:
    """A setting from a step on."""

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
    """The last step that was still sound."""
    evidence: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Stored:
    """An alarm's row."""

    id: uuid.UUID
    is_new: bool


def read_requests(run_id: uuid.UUID) -> Requests:
    """One query."""
    of_run = (SettingChange.run_id == run_id, SettingChange.step.is_(None))
    waiting = select(func.array_agg(SettingChange.name)).where(*of_run).scalar_subquery()
    pause = Run.summary[PAUSE_REQUESTED].as_boolean()
    with transaction() as session:
        asked_at, status, is_pause, changes = session.execute(
            select(Run.stop_requested_at, Run.status, pause, waiting).where(Run.id == run_id)
        ).one()
    return Requests(asked_at is not None or status is RunStatus.STOPPED, bool(is_pause), frozenset(changes or ()))


def claimed_changes(run_id: uuid.UUID) -> list[ClaimedChange]:
    """All that were taken up, also by an earlier attempt after the state from which this one goes on."""
    statement = select(SettingChange).where(SettingChange.run_id == run_id, SettingChange.step.is_not(None))
    with transaction() as session:
        return [_change(row) for row in session.scalars(statement.order_by(SettingChange.id))]


def claim_changes(run_id: uuid.UUID, step_of: Callable[[str], int | None]) -> list[ClaimedChange]:
    """Settings that wait are used from the step on that their name is given; None: it waits on."""
    waiting = select(SettingChange).where(SettingChange.run_id == run_id, SettingChange.step.is_(None))
    with transaction() as session:
        rows = session.scalars(waiting.order_by(SettingChange.id).with_for_update()).all()
        for row in rows:
            row.step = step_of(row.name)
        announce(session, run_topic(run_id))
        return [_change(row) for row in rows if row.step is not None]


def active_alarms(run_id: uuid.UUID, first: int, last: int) -> dict[str, int]:
    """Of these steps: alarms whose condition is not over, answered or not, each with its newest step."""
    of_steps = (Alarm.run_id == run_id, Alarm.step.between(first, last))
    with transaction() as session:
        rows = session.scalars(select(Alarm).where(*of_steps).order_by(Alarm.step)).all()
    return {row.name: row.step for row in rows if CLEARED not in row.evidence}


def record_alarm(run_id: uuid.UUID, draft: AlarmDraft, changes: Iterable[ClaimedChange] = ()) -> Stored:
    """Store an alarm with the settings that it changes. The same one again, after a resume, is met again; of what ends
    the process each time, only while it is open, so that it can be answered each time."""
    kind = ALARM_KINDS[draft.name]
    evidence = {**draft.evidence, CONDITION: draft.condition, "onset": draft.onset}
    evidence |= {"formula": kind.formula, "source": kind.source}
    with transaction() as session:
        if known := _known(session, run_id, draft):
            return Stored(known.id, is_new=False)
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
        for change in changes:
            session.add(
                SettingChange(
                    run_id=run_id,
                    name=change.name,
                    before=change.before,
                    after=change.after,
                    alarm_id=alarm.id,
                    step=change.step,
                )
            )
        if draft.action in _ENDING:
            _tell(session, alarm)
        announce(session, run_topic(run_id))
        return Stored(alarm.id, is_new=True)


def _tell(session: Session, alarm: Alarm) -> None:
    """People learn that a run ends itself; what a detector did stands among the interventions too."""
    kind, run = ALARM_KINDS[alarm.name], session.get_one(Run, alarm.run_id)
    did = {AlarmAction.PAUSE: "paused", AlarmAction.STOP: "stopped", AlarmAction.ROLL_BACK: "rolled back"}[alarm.action]
    is_intervention = alarm.name == INTERVENTION
    if is_intervention:
        values = {
            "id": new_id(),
            "run_id": run.id,
            "step": alarm.step,
            "detector": alarm.evidence["detector"],
            "action": Action(alarm.evidence["on_flag"]),
            "rollouts": len(alarm.evidence.get("rollouts") or ()),
            "sentence": alarm.sentence,
            "alarm_id": alarm.id,
        }
        session.execute(insert(Intervention).values(values).on_conflict_do_nothing())
    outbox.announce(
        session,
        kind=NoticeKind.INTERVENTION if is_intervention else NoticeKind.ALARM,
        title=f"{run.name} is {did} after step {alarm.step}: {kind.title}",
        text=f"{alarm.sentence} {kind.advice}",
        path=f"/runs/{run.id}/alarms#alarm-{alarm.id}",
        run_id=run.id,
        evidence=alarm.evidence,
    )


def clear_alarms(run_id: uuid.UUID, conditions: Iterable[str], step: int) -> None:
    """Note at which step the conditions of open alarms were over."""
    wanted = set(conditions)
    with transaction() as session:
        for alarm in session.scalars(select(Alarm).where(Alarm.run_id == run_id)):
            if alarm.evidence.get(CONDITION) in wanted and CLEARED not in alarm.evidence:
                alarm.evidence = {**alarm.evidence, CLEARED: step}
        announce(session, run_topic(run_id))


def _known(session: Session, run_id: uuid.UUID, draft: AlarmDraft) -> Alarm | None:
    same = (Alarm.run_id == run_id, Alarm.name == draft.name, Alarm.step == draft.step)
    rows = session.scalars(select(Alarm).where(*same)).all()
    if draft.name in EACH_TIME:
        rows = [row for row in rows if row.answer is None and CLEARED not in row.evidence]
    return next((row for row in rows if row.evidence.get(CONDITION) == draft.condition), None)


def _change(row: SettingChange) -> ClaimedChange:
    assert row.step is not None
    return ClaimedChange(row.name, row.before, row.after, row.step)
