"""Storage of a training run between two steps: requests of people, changed settings, alarms and interventions.

Interventions are the actions of detectors in training: they screen rollouts, or end the run with an alarm.
"""

import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import orjson
from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from backend.core.events import announce, run_topic
from backend.core.session import transaction
from backend.detectors.tables import Flag
from backend.domain.detectors.registry import SPECS
from backend.domain.detectors.spec import Action
from backend.domain.ids import new_id
from backend.domain.notifications.notices import NoticeKind
from backend.domain.text import json_text, plain_text
from backend.domain.training.alarm_kinds import ALARM_KINDS
from backend.domain.training.alarms import CLEARED, INTERVENTION
from backend.domain.training.configuration import Stage
from backend.domain.vocabulary import AlarmAction, RunStatus
from backend.notifications import outbox
from backend.runs.service import PAUSE_REQUESTED
from backend.runs.tables import Run
from backend.studies.patterns import last_honest_checkpoint
from backend.training.branches import newest_before
from backend.training.tables import Alarm, Intervention, SettingChange

ENDINGS = {AlarmAction.PAUSE: "paused", AlarmAction.STOP: "stopped", AlarmAction.ROLL_BACK: "rolled back"}
"""Actions that end the process, as notices describe them."""
EACH_TIME = frozenset({"not_finite", "stall", "out_of_memory", "process_killed"})
"""Alarms about failures: the run cannot continue, whether or not a person saw an earlier one."""
PATTERNS = "patterns"
"""Key of an alarm's evidence: the clusters that were flagged."""
WAS_SEEN = "laid_down"
"""Key of an alarm's evidence: the run ended because of it, so a person who resumes the run accepts it."""
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


def record_alarm(run_id: uuid.UUID, draft: AlarmDraft, changes: Iterable[ClaimedChange] = ()) -> tuple[uuid.UUID, bool]:
    """Store an alarm with the settings that it changes, and notify people if it ends the process.

    Returns its id and whether it is new: after a resume the same alarm is recognized. An alarm of `EACH_TIME` is
    recognized only while it is open, so that it can be answered each time.
    """
    kind = ALARM_KINDS[draft.name]
    evidence = {**draft.evidence, CONDITION: draft.condition, "onset": draft.onset}
    evidence |= {"formula": kind.formula, "source": kind.source}
    same = (Alarm.run_id == run_id, Alarm.name == draft.name, Alarm.step == draft.step)
    with transaction() as session:
        for known in session.scalars(select(Alarm).where(*same)):
            is_open = known.answer is None and CLEARED not in known.evidence
            if known.evidence.get(CONDITION) == draft.condition and (is_open or draft.name not in EACH_TIME):
                return known.id, False
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
        return alarm.id, True


def clear_alarms(run_id: uuid.UUID, conditions: Iterable[str], step: int) -> None:
    """Record the step at which the conditions of open alarms ended."""
    ended = set(conditions)
    with transaction() as session:
        for alarm in session.scalars(select(Alarm).where(Alarm.run_id == run_id)):
            if alarm.evidence.get(CONDITION) in ended and CLEARED not in alarm.evidence:
                alarm.evidence = {**alarm.evidence, CLEARED: step}
        announce(session, run_topic(run_id))


@dataclass(frozen=True, slots=True)
class ScreenedRollouts:
    """Rollouts of one step that a detector keeps out of the gradient."""

    detector: str
    rollouts: int
    sentence: str
    examples: tuple[uuid.UUID, ...] = ()
    seen: str = ""
    """The detector's sentence about the first of them."""


def title_of(detector: str) -> str:
    return SPECS[detector].title if detector in SPECS else detector


def record_screened(run_id: uuid.UUID, step: int, screened: Iterable[ScreenedRollouts]) -> None:
    """Store one row per detector and step. People are notified of each detector's first one in a run."""
    with transaction() as session:
        run = session.get_one(Run, run_id)
        announced = set(session.scalars(select(Intervention.detector).where(Intervention.run_id == run_id)))
        for each in screened:
            values = {"rollouts": each.rollouts, "sentence": plain_text(each.sentence)}
            key = {"run_id": run_id, "step": step, "detector": each.detector, "action": Action.SCREEN}
            statement = insert(Intervention).values({"id": new_id(), **key, **values})
            session.execute(statement.on_conflict_do_update(index_elements=["run_id", "step", "detector"], set_=values))
            if each.detector in announced:
                continue
            seen = f" Seen in the first example: {each.seen}" if each.seen else ""
            outbox.announce(
                session,
                kind=NoticeKind.INTERVENTION,
                title=f"{title_of(each.detector)}: rollouts of {run.name} are screened",
                text=f"Step {step}: {each.sentence}{seen} From now on, rollouts that this detector flags stay out of "
                "the gradient until a person judges them. You get this notice once per run.",
                path=f"/review?run={run.id}&detector={each.detector}",
                run_id=run.id,
                evidence={
                    "detector": each.detector,
                    "step": step,
                    "screened": each.rollouts,
                    "seen": each.seen,
                    "rollouts": each.examples,
                },
            )
        announce(session, run_topic(run_id))


def flagged_by(run_id: uuid.UUID, detectors: Collection[str], *, before_step: int) -> dict[uuid.UUID, set[str]]:
    """Return the rollouts that flags of these detectors are about or name, with the detectors that flagged each."""
    if not detectors:
        return {}
    statement = select(Flag.detector, Flag.rollout_id, Flag.evidence["rollouts"]).where(
        Flag.run_id == run_id, Flag.detector.in_(detectors), func.coalesce(Flag.training_step, 0) < before_step
    )
    found: defaultdict[uuid.UUID, set[str]] = defaultdict(set)
    with transaction() as session:
        for detector, rollout_id, named in session.execute(statement):
            rollouts = [rollout_id] if rollout_id else named if isinstance(named, list) else []
            for each in rollouts:
                found[uuid.UUID(str(each))].add(detector)
    return dict(found)


def prepared_branch(run_id: uuid.UUID, detector: str, onset: int) -> tuple[int, dict[str, object] | None]:
    """Return the last step before the detector's first flag, and the checkpoint that a branch would start from.

    That is the last honest one by flags, verdicts and onsets, and in any case one from before this detector's flags.
    """
    first = select(func.min(Flag.training_step)).where(Flag.run_id == run_id, Flag.detector == detector)
    with transaction() as session:
        run = session.get_one(Run, run_id)
        flagged = session.scalar(first)
        last_step = onset if flagged is None else max(0, min(onset, flagged - 1))
        found = [last_honest_checkpoint(session, run, detector=detector), newest_before(session, run, last_step)]
        checkpoints = [each for each in found if each is not None]
        if not checkpoints:
            return last_step, None
        earliest = min(checkpoints, key=lambda each: each.step if each.stage == Stage.GRPO else 0)
        return last_step, {"checkpoint_id": str(earliest.id), "stage": earliest.stage, "step": earliest.step}


def _interventions(session: Session, run_id: uuid.UUID) -> list[Alarm]:
    statement = select(Alarm).where(Alarm.run_id == run_id, Alarm.name == INTERVENTION)
    return list(session.scalars(statement.order_by(Alarm.id)))


def open_interventions(run_id: uuid.UUID, reached: int) -> list[Alarm]:
    """Return interventions up to the last saved step that did not end the run yet: its process died first."""
    with transaction() as session:
        alarms = _interventions(session, run_id)
    return [
        alarm for alarm in alarms if alarm.step <= reached and alarm.answer is None and not alarm.evidence.get(WAS_SEEN)
    ]


def accepted_patterns(run_id: uuid.UUID) -> dict[str, set[str]]:
    """Return the clusters by detector that a person let pass. They do not end the run a second time."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    with transaction() as session:
        for alarm in _interventions(session, run_id):
            if alarm.answer is not None or alarm.evidence.get(WAS_SEEN):
                found[str(alarm.evidence["detector"])].update(alarm.evidence.get(PATTERNS) or ())
    return dict(found)


def mark_interventions_seen(session: Session, run: Run) -> None:
    """Record, when the run ends, that a person who resumes it has seen its interventions."""
    for alarm in _interventions(session, run.id):
        alarm.evidence = {**alarm.evidence, WAS_SEEN: True}


def close_interventions(run_id: uuid.UUID, step: int) -> None:
    """A person resumed the run: the interventions that ended it have ended, answered or not."""
    with transaction() as session:
        for alarm in _interventions(session, run_id):
            if alarm.evidence.get(WAS_SEEN) and CLEARED not in alarm.evidence:
                alarm.evidence = {**alarm.evidence, CLEARED: step}
        announce(session, run_topic(run_id))
