"""The tab `Alarms` of a training run, and the buttons that steer it: answers, settings, pause, branches."""

import uuid
from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Depends, Form, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.core.events import run_topic
from backend.domain.training.alarm_kinds import ALARM_KINDS, AlarmKind
from backend.domain.training.alarms import CLEARED, actions_of
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.detector_actions import Wanted
from backend.domain.training.steering import when_used
from backend.domain.vocabulary import AlarmAnswer, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.runs import queries as run_queries
from backend.runs.header import RunHeader, head_blocks, run_header
from backend.runs.tables import Run
from backend.training import alarms, branches, steering
from backend.training.branch_versions import onto_version, other_versions
from backend.training.interventions import DetectorAction, detector_actions, interventions_of
from backend.training.schemas import read_budget_form, read_settings_form
from backend.training.tables import Alarm, Intervention, SettingChange
from backend.web.dependencies import SessionDep, Trainer, Viewer
from backend.web.page import page, render_block, see_other
from backend.web.streams import END, live

router = APIRouter(prefix="/runs/{run_id}")
TEMPLATE = "training/alarms.html"
ANSWERED = {
    AlarmAnswer.LOWER_RATE: "The rate is lowered after the step under way.",
    AlarmAnswer.SAVE_MEMORY: "The run goes on from its last saved state and needs less memory.",
    AlarmAnswer.PAUSE: "The run pauses after the step under way.",
    AlarmAnswer.STOP: "Stopping. What is finished is kept.",
    AlarmAnswer.ROLL_BACK: "A branch goes on from the last good checkpoint.",
    AlarmAnswer.DISMISS: "Noted: it is none.",
}
LOWERED_AT_REST = "The rate is lowered: the first step after a resume uses it."
MOST_INTERVENTIONS = 50
_ELSEWHERE = ("alarms.", "detectors.")
"""Settings with a table of their own."""
CHARTS = {"heldout/reward": "reward", "ratio/high_clip": "ratio/low_clip"}
"""Curves that are drawn in a chart of another name."""


@dataclass(frozen=True, slots=True)
class ListedAlarm:
    """An alarm with what is known about its kind."""

    alarm: Alarm
    kind: AlarmKind

    @property
    def cleared_step(self) -> int | None:
        return self.alarm.evidence.get(CLEARED)

    @property
    def chart(self) -> str:
        """Key of the chart that shows its curve; empty where there is none."""
        curve = str(self.alarm.evidence.get("curve", ""))
        if curve.startswith("columns/"):
            return "columns"
        return CHARTS.get(curve, curve)

    @property
    def is_open(self) -> bool:
        return self.alarm.answer is None and self.cleared_step is None


@dataclass(frozen=True, slots=True)
class Threshold:
    """What the run looks out for, and from when on it is an alarm."""

    kind: AlarmKind
    action: str
    actions: Sequence[str]
    """What may be chosen; empty where nothing can."""
    limits: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class AlarmsPage:
    """A training run's alarms, its settings that may change, and what was changed."""

    head: RunHeader
    run: Run
    items: Sequence[ListedAlarm]
    thresholds: Sequence[Threshold]
    settings: Mapping[str, Any]
    """Those that are not about alarms and detectors."""
    rate_factor: float
    rate_in_use: str
    """The setting that is the learning rate of the stage that the run is in."""
    grace_steps: int
    changes: Sequence[SettingChange]
    can_change: bool
    """Something would still take a change up."""
    interventions: Sequence[Intervention]
    """What detectors did, newest first, at most so many as fit a page."""
    detectors: Sequence[DetectorAction]
    starts_branch: bool
    own_thresholds: str
    """Of detectors, as text."""
    actions: Sequence[str] = get_args(Wanted)


@dataclass(frozen=True, slots=True)
class BranchPage:
    """The question where a branch of a run begins, and which version of the environment it goes on with."""

    run: Run
    versions: Sequence[EnvironmentVersion]
    """All but the run's own, newest first."""
    checkpoints: Sequence[Checkpoint]
    """Those that a branch may begin at."""
    checkpoint_id: uuid.UUID | None
    alarm: Alarm | None
    """What it is about, where it is a roll back."""
    good: Checkpoint | None
    """Of a roll back: the last good checkpoint before the trouble began."""
    budget: Mapping[str, Any]
    """The source's limits, with which the branch begins anew."""


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
    """`version`, of a roll back: the one that the branch goes on with."""
    run = _training(session, run_id)
    onto = onto_version(session, run, version, without_certificate)
    branch = alarms.answer_alarm(session, actor, run, alarm_id, answer, onto=onto)
    told = ANSWERED[answer]
    if answer is AlarmAnswer.LOWER_RATE and run.status.is_over:
        told = LOWERED_AT_REST
    return see_other(f"/runs/{branch.id if branch else run_id}" + ("" if branch else "/alarms"), told)


@router.post("/settings", response_class=HTMLResponse)
def change_settings(
    run_id: uuid.UUID,
    session: SessionDep,
    actor: Trainer,
    changes: Annotated[dict[str, str | None], Depends(read_settings_form)],
) -> Response:
    run = _training(session, run_id)
    made = steering.change_settings(session, actor, run, changes)
    return see_other(f"/runs/{run_id}/alarms", _told(run, made))


@router.post("/settings/{change_id}/undo", response_class=HTMLResponse)
def undo_change(run_id: uuid.UUID, change_id: uuid.UUID, session: SessionDep, actor: Trainer) -> Response:
    run = _training(session, run_id)
    made = steering.undo_change(session, actor, run, change_id)
    return see_other(f"/runs/{run_id}/alarms", _told(run, made))


@router.post("/lower-rate", response_class=HTMLResponse)
def lower_rate(run_id: uuid.UUID, session: SessionDep, actor: Trainer) -> Response:
    """Of the stage that the run is in."""
    run = _training(session, run_id)
    made = steering.lower_rate(session, actor, run, steering.rate_in_use(session, run))
    return see_other(f"/runs/{run_id}/alarms", _told(run, made))


@router.get("/branch", response_class=HTMLResponse)
def plan_branch(
    request: Request,
    run_id: uuid.UUID,
    session: SessionDep,
    _: Trainer,
    alarm_id: uuid.UUID | None = None,
    checkpoint_id: uuid.UUID | None = None,
) -> HTMLResponse:
    """Where a branch begins and which version it goes on with; `alarm_id`: a roll back because of this alarm."""
    run = _training(session, run_id)
    alarm = alarms.get_alarm(session, run, alarm_id) if alarm_id else None
    good = steering.good_checkpoint(session, run, alarm) if alarm else None
    context = BranchPage(
        run=run,
        versions=other_versions(session, run),
        checkpoints=branches.branch_points(session, run),
        checkpoint_id=good.id if good else checkpoint_id,
        alarm=alarm,
        good=good,
        budget=steering.current_settings(session, run).budget.model_dump(),
    )
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
    """`is_slower`: with the rate that the run's alarms would lower to."""
    run = _training(session, run_id)
    checkpoint = branches.checkpoint_for(session, run, checkpoint_id, None)
    changes = budget | (branches.rate_after(session, run, checkpoint) if is_slower else {})
    onto = onto_version(session, run, version, without_certificate)
    branch = branches.start_branch(session, actor, run, checkpoint, changes, onto=onto)
    return see_other(f"/runs/{branch.id}", f"The branch from step {branch.branch_step} is queued.")


def _alarms_page(session: Session, run_id: uuid.UUID) -> AlarmsPage:
    run = _training(session, run_id)
    now, offered = steering.current_settings(session, run), steering.offered_settings(session, run)
    return AlarmsPage(
        head=run_header(session, run),
        run=run,
        items=[ListedAlarm(alarm, ALARM_KINDS[alarm.name]) for alarm in alarms.alarms_of(session, run.id)],
        thresholds=_thresholds(now),
        settings={name: value for name, value in offered.items() if not name.startswith(_ELSEWHERE)},
        rate_factor=now.alarms.rate_factor,
        rate_in_use=steering.rate_in_use(session, run),
        grace_steps=now.alarms.grace_steps,
        changes=run_queries.setting_changes(session, run.id)[::-1],
        can_change=run.status is not RunStatus.COMPLETED,
        interventions=interventions_of(session, run.id)[:MOST_INTERVENTIONS],
        detectors=detector_actions(session, run, now),
        starts_branch=now.detectors.start_branch,
        own_thresholds=", ".join(map(str, now.detectors.thresholds)),
    )


def _thresholds(now: TrainingConfiguration) -> list[Threshold]:
    return [
        Threshold(kind, getattr(now.alarms, kind.name, "note"), actions_of(kind.name), kind.limits(now.alarms))
        for kind in ALARM_KINDS.values()
    ]


def _told(run: Run, made: Sequence[SettingChange]) -> str:
    if not made:
        return "Nothing to change: it is so already."
    told = ", ".join(f"{row.name} is {row.after} {when_used(row.name, is_over=run.status.is_over)}" for row in made[:3])
    return f"{told}{', …' if len(made) > 3 else ''}."


def _training(session: Session, run_id: uuid.UUID) -> Run:
    run = run_queries.get_run(session, run_id)
    steering.must_be_training(run)
    return run
