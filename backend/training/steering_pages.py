"""The tab **Alarms** of a training run, and the buttons that steer it: answers, settings, branches."""

import uuid
from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, get_args

from fastapi import APIRouter, Depends, Form, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import JsonValue
from sqlalchemy.orm import Session

from backend.core.events import run_topic
from backend.domain.training.alarm_kinds import ALARM_KINDS, AlarmKind
from backend.domain.training.alarms import CLEARED, DetectorAction, actions_of
from backend.domain.training.steering import LEARNING_RATE, WARM_UP_RATE, when_used
from backend.domain.vocabulary import AlarmAnswer, RunStatus
from backend.runs import queries as run_queries
from backend.runs.header import RunHeader, head_blocks, run_header
from backend.runs.tables import Run
from backend.training import alarms, branches, service, steering
from backend.training.schemas import read_budget_form, read_settings_form
from backend.training.tables import Alarm, Intervention, SettingChange
from backend.web.dependencies import SessionDep, Trainer, Viewer
from backend.web.page import page, render_block, see_other
from backend.web.streams import END, live

router = APIRouter(prefix="/runs/{run_id}")
TEMPLATE = "training/alarms.html"
NOTICES = {
    AlarmAnswer.LOWER_RATE: "The learning rate is lowered after the current step.",
    AlarmAnswer.SAVE_MEMORY: "The run resumes from its last saved state and needs less memory.",
    AlarmAnswer.PAUSE: "The run pauses after the current step.",
    AlarmAnswer.STOP: "The run is stopping. Finished work is kept.",
    AlarmAnswer.ROLL_BACK: "A branch continues from the last good checkpoint.",
    AlarmAnswer.DISMISS: "The alarm is dismissed.",
}
MOST_INTERVENTIONS = 50
"""Number of interventions on the page."""
CHARTS = {"heldout/reward": "reward", "ratio/high_clip": "ratio/low_clip"}
"""Curves that are part of a chart with another name."""


@dataclass(frozen=True, slots=True)
class ListedAlarm:
    """An alarm with its kind."""

    alarm: Alarm
    kind: AlarmKind
    cleared_step: int | None
    chart: str
    """Key of the chart that shows its curve; empty if there is none."""
    is_open: bool


@dataclass(frozen=True, slots=True)
class AlarmSetting:
    """A kind of alarm with the action and the thresholds of the run."""

    kind: AlarmKind
    action: str
    actions: Sequence[str]
    """Possible actions; empty if the action cannot be changed."""
    limits: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class AlarmsPage:
    """The alarms of a training run, its changeable settings, and the changes so far."""

    head: RunHeader
    run: Run
    items: Sequence[ListedAlarm]
    thresholds: Sequence[AlarmSetting]
    settings: Mapping[str, JsonValue]
    """Settings except those of alarms and detectors, which have their own tables."""
    rate_factor: float
    rate_in_use: str
    """The setting that is the learning rate of the current stage."""
    grace_steps: int
    changes: Sequence[SettingChange]
    can_change: bool
    """Changes would still have an effect."""
    interventions: Sequence[Intervention]
    """Newest first."""
    detectors: Sequence[steering.DetectorAction]
    starts_branch: bool
    own_thresholds: str
    """Detector thresholds of the run, as text."""
    actions: Sequence[str] = get_args(DetectorAction)


def _alarms_page(session: Session, run_id: uuid.UUID) -> AlarmsPage:
    run = _training_run(session, run_id)
    now, settings = steering.current_settings(session, run), steering.changeable_settings(session, run)
    items = []
    for alarm in alarms.list_alarms(session, run.id):
        curve, cleared_step = str(alarm.evidence.get("curve", "")), alarm.evidence.get(CLEARED)
        chart = "columns" if curve.startswith("columns/") else CHARTS.get(curve, curve)
        is_open = alarm.answer is None and cleared_step is None
        items.append(ListedAlarm(alarm, ALARM_KINDS[alarm.name], cleared_step, chart, is_open))
    return AlarmsPage(
        head=run_header(session, run),
        run=run,
        items=items,
        thresholds=[
            AlarmSetting(kind, getattr(now.alarms, kind.name, "note"), actions_of(kind.name), kind.limits(now.alarms))
            for kind in ALARM_KINDS.values()
        ],
        settings={name: value for name, value in settings.items() if not name.startswith(("alarms.", "detectors."))},
        rate_factor=now.alarms.rate_factor,
        rate_in_use=WARM_UP_RATE if steering.is_in_warm_up(session, run) else LEARNING_RATE,
        grace_steps=now.alarms.grace_steps,
        changes=run_queries.setting_changes(session, run.id)[::-1],
        can_change=run.status is not RunStatus.COMPLETED,
        interventions=steering.list_interventions(session, run.id)[:MOST_INTERVENTIONS],
        detectors=steering.detector_actions(session, run, now),
        starts_branch=now.detectors.start_branch,
        own_thresholds=", ".join(map(str, now.detectors.thresholds)),
    )


def _training_run(session: Session, run_id: uuid.UUID) -> Run:
    run = run_queries.get_run(session, run_id)
    steering.require_training_run(run)
    return run


@router.get("/alarms", response_class=HTMLResponse)
def show_alarms(request: Request, run_id: uuid.UUID, session: SessionDep, _: Viewer) -> HTMLResponse:
    return page(request, TEMPLATE, _alarms_page(session, run_id), block="run_alarms")


@router.get("/alarms/events", response_class=EventSourceResponse)
async def alarm_events(request: Request, run_id: uuid.UUID, _: Viewer) -> AsyncIterable[ServerSentEvent]:
    def render(session: Session) -> dict[str, str]:
        context = _alarms_page(session, run_id)
        blocks = head_blocks(request, context.head)
        parts = ("run_alarms", "run_interventions", "run_changes")
        blocks |= {name: render_block(request, TEMPLATE, name, context) for name in parts}
        blocks["points"] = f"{context.run.attempt} {int(context.run.progress.get('done') or 0)}"
        return blocks | ({END: ""} if context.head.is_settled else {})

    async for event in live(request, (run_topic(run_id),), render):
        yield event


@router.post("/alarms/{alarm_id}", response_class=HTMLResponse)
def answer_alarm(
    run_id: uuid.UUID,
    alarm_id: uuid.UUID,
    session: SessionDep,
    actor: Trainer,
    answer: Annotated[AlarmAnswer, Form()],
    version: Annotated[int | None, Form(ge=1)] = None,
    without_certificate: Annotated[str, Form(max_length=2000)] = "",
) -> Response:
    """Answer an alarm. `version` and `without_certificate` are for the branch of a roll back."""
    run = _training_run(session, run_id)
    onto = service.version_for_branch(session, run, version, without_certificate)
    branch = alarms.answer_alarm(session, actor, run, alarm_id, answer, onto=onto)
    if branch:
        return see_other(f"/runs/{branch.id}", NOTICES[answer])
    notice = NOTICES[answer]
    if answer is AlarmAnswer.LOWER_RATE and run.status.is_over:
        notice = "The learning rate is lowered when the run is resumed."
    return see_other(f"/runs/{run_id}/alarms", notice)


@router.post("/settings", response_class=HTMLResponse)
def change_settings(
    run_id: uuid.UUID,
    session: SessionDep,
    actor: Trainer,
    changes: Annotated[dict[str, str | None], Depends(read_settings_form)],
) -> Response:
    run = _training_run(session, run_id)
    return _changed(run, steering.change_settings(session, actor, run, changes))


@router.post("/settings/{change_id}/undo", response_class=HTMLResponse)
def undo_change(run_id: uuid.UUID, change_id: uuid.UUID, session: SessionDep, actor: Trainer) -> Response:
    run = _training_run(session, run_id)
    return _changed(run, steering.undo_change(session, actor, run, change_id))


@router.post("/lower-rate", response_class=HTMLResponse)
def lower_rate(run_id: uuid.UUID, session: SessionDep, actor: Trainer) -> Response:
    """Lower the learning rate of the current stage."""
    run = _training_run(session, run_id)
    return _changed(run, steering.lower_rate(session, actor, run))


def _changed(run: Run, rows: Sequence[SettingChange]) -> Response:
    notice = "The settings already have these values."
    if rows:
        over = run.status.is_over
        changes = [f"{row.name} is {row.after} {when_used(row.name, is_over=over)}" for row in rows[:3]]
        notice = f"{', '.join(changes)}{', …' if len(rows) > 3 else ''}."
    return see_other(f"/runs/{run.id}/alarms", notice)


@router.get("/branch", response_class=HTMLResponse)
def new_branch(
    request: Request,
    run_id: uuid.UUID,
    session: SessionDep,
    _: Trainer,
    alarm_id: uuid.UUID | None = None,
    checkpoint_id: uuid.UUID | None = None,
) -> HTMLResponse:
    """The form for a branch. With `alarm_id` it is a roll back from this alarm."""
    run = _training_run(session, run_id)
    alarm = alarms.get_alarm(session, run, alarm_id) if alarm_id else None
    good = alarms.good_checkpoint(session, run, alarm) if alarm else None
    context = {
        "run": run,
        "versions": service.other_versions(session, run),
        "checkpoints": branches.branch_points(session, run),
        "checkpoint_id": good.id if good else checkpoint_id,
        "alarm": alarm,
        "good": good,
        "budget": steering.current_settings(session, run).budget.model_dump(),
    }
    return page(request, "training/branch.html", context)


@router.post("/branch", response_class=HTMLResponse)
def start_branch(
    run_id: uuid.UUID,
    session: SessionDep,
    actor: Trainer,
    checkpoint_id: Annotated[uuid.UUID, Form()],
    budget: Annotated[dict[str, str | None], Depends(read_budget_form)],
    is_slower: Annotated[bool, Form()] = False,
    version: Annotated[int | None, Form(ge=1)] = None,
    without_certificate: Annotated[str, Form(max_length=2000)] = "",
) -> Response:
    """Start a branch. `is_slower`: lower the learning rate by the factor of the alarm settings."""
    run = _training_run(session, run_id)
    checkpoint = branches.checkpoint_for(session, run, checkpoint_id, None)
    changes: dict[str, JsonValue] = {**budget}
    if is_slower:
        changes |= branches.rate_after(session, run, checkpoint)
    onto = service.version_for_branch(session, run, version, without_certificate)
    branch = branches.start_branch(session, actor, run, checkpoint, changes, onto=onto)
    return see_other(f"/runs/{branch.id}", f"The branch from step {branch.branch_step} is queued.")
