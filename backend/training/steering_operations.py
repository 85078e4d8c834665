"""Alarms, settings and branches of training runs for scripts."""

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel

from backend.domain.detectors.spec import Action
from backend.domain.training.alarm_kinds import ALARM_KINDS
from backend.domain.training.alarms import CLEARED
from backend.domain.vocabulary import AlarmAction, AlarmAnswer, RunStatus
from backend.runs import queries as run_queries
from backend.runs.responses import RunAnswer
from backend.runs.tables import Run
from backend.training import alarms, branches, interventions, steered_run, steering
from backend.training.branch_versions import onto_version
from backend.training.steered_run import OfferedAnswer
from backend.training.steering_schemas import AnswerRequest, BranchRequest, ChangesRequest
from backend.training.tables import Alarm, Intervention, SettingChange
from backend.web.dependencies import SessionDep, Trainer, Viewer

router = APIRouter(prefix="/api/v1/runs/{run_id}", tags=["training"])


class OfferedOut(BaseModel):
    """What would do something about an alarm, as the run is."""

    answer: AlarmAnswer
    label: str
    """What it does, as its button says it."""


class AlarmOut(BaseModel):
    """Something in a training run that looks unhealthy."""

    id: uuid.UUID
    name: str
    title: str
    step: int
    sentence: str
    """What was seen."""
    cause: str
    """What it usually means."""
    advice: str
    evidence: dict[str, Any]
    action: AlarmAction
    """What the run did by itself."""
    answer: AlarmAnswer | None
    """What a person did about it."""
    answered_by: uuid.UUID | None
    answered_at: datetime | None
    is_open: bool
    """Its condition lasts and nobody answered."""
    created_at: datetime
    answers: list[OfferedOut]
    """What it may be answered with; none when it was answered."""

    @classmethod
    def of(cls, alarm: Alarm, offered: Sequence[OfferedAnswer] = ()) -> "AlarmOut":
        kind = ALARM_KINDS[alarm.name]
        stored = {name: getattr(alarm, name) for name in cls.model_fields if hasattr(alarm, name)}
        is_open = alarm.answer is None and CLEARED not in alarm.evidence
        answers = [OfferedOut(answer=each.answer, label=each.label) for each in offered]
        return cls(**stored, title=kind.title, cause=kind.cause, advice=kind.advice, is_open=is_open, answers=answers)


class AlarmsOut(BaseModel):
    """A run's alarms, newest first, and what it looks out for."""

    items: list[AlarmOut]
    thresholds: dict[str, Any]
    """The run's choices about alarms, with what was changed since."""


class ChangeOut(BaseModel):
    """A setting that was changed while the run trained."""

    id: uuid.UUID
    name: str
    before: Any
    after: Any
    step: int | None
    """The first step that used it; null while it waits for the run."""
    alarm_id: uuid.UUID | None
    asked_by: uuid.UUID | None
    """Null: the run itself, because of an alarm."""
    created_at: datetime

    @classmethod
    def of(cls, change: SettingChange) -> "ChangeOut":
        return cls(**{name: getattr(change, name) for name in cls.model_fields})


class SettingsOut(BaseModel):
    """What may be changed while a run trains, as it is now, and what was."""

    settings: dict[str, Any]
    changes: list[ChangeOut]


class InterventionOut(BaseModel):
    """What a detector's action did at one step."""

    id: uuid.UUID
    step: int
    detector: str
    action: Action
    rollouts: int
    """Of `screen`: kept out of the gradient of this step. Of the others: named as flagged."""
    sentence: str
    alarm_id: uuid.UUID | None
    """Where what ended the run is answered."""
    created_at: datetime

    @classmethod
    def of(cls, row: Intervention) -> "InterventionOut":
        return cls(**{name: getattr(row, name) for name in cls.model_fields})


class DetectorActionOut(BaseModel):
    """What follows from a detector's flags in this run."""

    wanted: str
    """The run's own choice; `as_set`: as its environment has it, else the default."""
    action: Action
    """In force."""
    is_enabled: bool
    thresholds: dict[str, float]
    """The run's own; the others are its environment's, else the defaults."""


class InterventionsOut(BaseModel):
    """What detectors did in a training run, newest first, and what they would do."""

    items: list[InterventionOut]
    actions: dict[str, DetectorActionOut]


class AnsweredOut(BaseModel):
    """An alarm, and the branch that its answer started."""

    alarm: AlarmOut
    branch_run_id: uuid.UUID | None


class BranchOut(BaseModel):
    """A training run that goes on from a checkpoint of another."""

    id: uuid.UUID
    name: str
    status: RunStatus
    source_run_id: uuid.UUID | None
    branch_step: int | None
    policy_id: uuid.UUID | None

    @classmethod
    def of(cls, run: Run) -> "BranchOut":
        return cls(**{name: getattr(run, name) for name in cls.model_fields})


@router.get("/alarms")
def list_alarms(run_id: uuid.UUID, session: SessionDep, _: Viewer) -> AlarmsOut:
    run = _training(session, run_id)
    rows = alarms.alarms_of(session, run.id)
    offered = steered_run.offered_answers(session, run, [row for row in rows if row.answer is None])
    thresholds = steered_run.current_settings(session, run).alarms.model_dump(mode="json")
    return AlarmsOut(items=[AlarmOut.of(row, offered.get(row.id, ())) for row in rows], thresholds=thresholds)


@router.post("/alarms/{alarm_id}")
def answer_alarm(
    run_id: uuid.UUID, alarm_id: uuid.UUID, request: AnswerRequest, session: SessionDep, actor: Trainer
) -> AnsweredOut:
    """One of its `answers`: lower the rate, pause, stop, roll back to the last good checkpoint, save memory and resume,
    or dismiss it. One that would do nothing about it is refused."""
    run = _training(session, run_id)
    onto = onto_version(session, run, request.version, request.without_certificate)
    branch = alarms.answer_alarm(session, actor, run, alarm_id, request.answer, onto=onto)
    answered = AlarmOut.of(alarms.get_alarm(session, run, alarm_id))
    return AnsweredOut(alarm=answered, branch_run_id=branch.id if branch else None)


@router.get("/interventions")
def list_interventions(run_id: uuid.UUID, session: SessionDep, _: Viewer) -> InterventionsOut:
    """What the actions of detectors did, and what is in force. Other actions: `POST …/settings` with
    `detectors.NAME`."""
    run = _training(session, run_id)
    found = interventions.detector_actions(session, run, steered_run.current_settings(session, run))
    return InterventionsOut(
        items=[InterventionOut.of(row) for row in interventions.interventions_of(session, run.id)],
        actions={
            each.spec.id: DetectorActionOut(
                wanted=each.wanted,
                action=each.action,
                is_enabled=each.is_enabled,
                thresholds=dict(each.thresholds),
            )
            for each in found
        },
    )


@router.get("/settings")
def get_settings(run_id: uuid.UUID, session: SessionDep, _: Viewer) -> SettingsOut:
    """What may be changed while the run trains, as it is now, and all changes so far."""
    run = _training(session, run_id)
    changes = [ChangeOut.of(change) for change in run_queries.setting_changes(session, run.id)]
    return SettingsOut(settings=steering.offered_settings(session, run), changes=changes)


@router.post("/settings")
def change_settings(run_id: uuid.UUID, request: ChangesRequest, session: SessionDep, actor: Trainer) -> list[ChangeOut]:
    """Ask for other values; the run takes them up between two steps, how it saves memory when it is resumed. Values
    that it has already are no changes."""
    run = _training(session, run_id)
    return [ChangeOut.of(row) for row in steering.change_settings(session, actor, run, request.changes)]


@router.post("/settings/{change_id}/undo")
def undo_change(run_id: uuid.UUID, change_id: uuid.UUID, session: SessionDep, actor: Trainer) -> list[ChangeOut]:
    """Set the value again that stood before a change."""
    run = _training(session, run_id)
    return [ChangeOut.of(row) for row in steering.undo_change(session, actor, run, change_id)]


@router.post("/pause")
def pause_run(run_id: uuid.UUID, session: SessionDep, actor: Trainer) -> RunAnswer:
    """Save the state after the step under way and rest; `resume` goes on from there."""
    run = _training(session, run_id)
    steering.request_pause(session, actor, run)
    return RunAnswer.of(run)


@router.post("/branch", status_code=201)
def start_branch(run_id: uuid.UUID, request: BranchRequest, session: SessionDep, actor: Trainer) -> BranchOut:
    """A new run that goes on from a checkpoint of this one with the steps that remain."""
    run = _training(session, run_id)
    checkpoint = branches.checkpoint_for(session, run, request.checkpoint_id, request.step)
    onto = onto_version(session, run, request.version, request.without_certificate)
    return BranchOut.of(branches.start_branch(session, actor, run, checkpoint, request.changes, onto=onto))


@router.get("/branches")
def list_branches(run_id: uuid.UUID, session: SessionDep, _: Viewer) -> list[BranchOut]:
    """Runs that go on from a checkpoint of this one, oldest first."""
    run = _training(session, run_id)
    return [BranchOut.of(branch) for branch in run_queries.branches_of(session, run.id)]


def _training(session: SessionDep, run_id: uuid.UUID) -> Run:
    run = run_queries.get_run(session, run_id)
    steering.must_be_training(run)
    return run
