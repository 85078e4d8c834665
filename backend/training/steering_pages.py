"""The tab **Alarms** of a training run, and the buttons that steer it: answers, settings, branches."""

import uuid
from collections.abc import Sequence
from typing import Annotated, get_args

from fastapi import APIRouter, Depends, Form, Request
from fastapi.responses import HTMLResponse, Response
from pydantic import JsonValue
from sqlalchemy import select

from backend.domain.training.alarm_kinds import ALARM_KINDS
from backend.domain.training.alarms import DetectorAction, actions_of
from backend.domain.training.steering import LEARNING_RATE, WARM_UP_RATE, when_used
from backend.domain.vocabulary import RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.runs import queries as run_queries
from backend.runs.header import HEAD_BLOCKS, run_header
from backend.runs.tables import Run
from backend.training import alarms, branches, service, steering
from backend.training.forms import read_settings_form
from backend.training.tables import SettingChange
from backend.web.dependencies import SessionDep, Trainer, Viewer
from backend.web.page import page, see_other
from backend.web.streams import live_page

router = APIRouter(prefix="/runs/{run_id}")


def training_run(run_id: uuid.UUID, session: SessionDep) -> Run:
    run = run_queries.get_run(session, run_id)
    steering.require_training_run(run)
    return run


TrainingRun = Annotated[Run, Depends(training_run)]


@live_page(
    *(router, "/alarms", "training/alarms.html", *HEAD_BLOCKS, "run_alarms", "run_interventions", "run_changes"),
    topics=["run:{run_id}"],
    swapped="run_alarms",
)
def show_alarms(session: SessionDep, _: Viewer, run_id: uuid.UUID) -> dict[str, object]:
    """The alarms of a training run, its changeable settings, and the changes so far."""
    run = training_run(run_id, session)
    head = run_header(session, run)
    now, settings = steering.current_settings(session, run), steering.changeable_settings(session, run)
    return {
        "head": head,
        "run": run,
        "alarms": alarms.list_alarms(session, run.id),
        "kinds": ALARM_KINDS,
        "actions_of": actions_of,
        "now": now,
        # those of alarms and detectors have their own tables
        "settings": {name: value for name, value in settings.items() if not name.startswith(("alarms.", "detectors."))},
        "rate_in_use": WARM_UP_RATE if steering.is_in_warm_up(session, run) else LEARNING_RATE,
        "changes": run_queries.setting_changes(session, run.id)[::-1],
        "can_change": run.status is not RunStatus.COMPLETED,  # changes would still have an effect
        "interventions": steering.list_interventions(session, run.id)[:50],
        "detectors": steering.detector_actions(session, run, now),
        "detector_choices": get_args(DetectorAction),
        "events": {"points": f"{run.attempt} {int(run.progress.get('done') or 0)}"},
        "is_over": head.is_settled,
    }


@router.post("/settings", response_class=HTMLResponse)
def change_settings(
    session: SessionDep,
    actor: Trainer,
    run: TrainingRun,
    changes: Annotated[dict[str, str | None], Depends(read_settings_form)],
) -> Response:
    return _changed(run, steering.change_settings(session, actor, run, changes))


@router.post("/settings/{change_id}/undo", response_class=HTMLResponse)
def undo_change(change_id: uuid.UUID, session: SessionDep, actor: Trainer, run: TrainingRun) -> Response:
    return _changed(run, steering.undo_change(session, actor, run, change_id))


@router.post("/lower-rate", response_class=HTMLResponse)
def lower_rate(session: SessionDep, actor: Trainer, run: TrainingRun) -> Response:
    """Lower the learning rate of the current stage."""
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
    session: SessionDep,
    _: Trainer,
    run: TrainingRun,
    alarm_id: uuid.UUID | None = None,
    checkpoint_id: uuid.UUID | None = None,
) -> HTMLResponse:
    """The form for a branch. With `alarm_id` it is a roll back from this alarm."""
    alarm = alarms.get_alarm(session, run, alarm_id) if alarm_id else None
    good = alarms.good_checkpoint(session, run, alarm) if alarm else None
    others = select(EnvironmentVersion).where(
        EnvironmentVersion.environment_id == run.version.environment_id, EnvironmentVersion.id != run.version_id
    )
    context = {
        "run": run,
        "versions": session.scalars(others.order_by(EnvironmentVersion.number.desc())).all(),
        "checkpoints": branches.branch_points(session, run),
        "checkpoint_id": good.id if good else checkpoint_id,
        "alarm": alarm,
        "good": good,
        "budget": steering.current_settings(session, run).budget.model_dump(),
    }
    return page(request, "training/branch.html", context)


@router.post("/branch", response_class=HTMLResponse)
def start_branch(
    session: SessionDep,
    actor: Trainer,
    run: TrainingRun,
    checkpoint_id: Annotated[uuid.UUID, Form()],
    sent: Annotated[dict[str, str | None], Depends(read_settings_form)],
    is_slower: Annotated[bool, Form()] = False,
    version: Annotated[int | None, Form(ge=1)] = None,
    without_certificate: Annotated[str, Form(max_length=2000)] = "",
) -> Response:
    """Start a branch. `is_slower`: lower the learning rate by the factor of the alarm settings.

    Limits of the budget that are not sent stay as in the source run.
    """
    checkpoint = branches.checkpoint_for(session, run, checkpoint_id, None)
    changes: dict[str, JsonValue] = {name: text for name, text in sent.items() if name.startswith("budget.")}
    if is_slower:
        changes |= branches.rate_after(session, run, checkpoint)
    onto = service.version_for_branch(session, run, version, without_certificate)
    branch = branches.start_branch(session, actor, run, checkpoint, changes, onto=onto)
    return see_other(f"/runs/{branch.id}", f"The branch from step {branch.branch_step} is queued.")
