"""/runs/{id}/studies: confirmed patterns and when each began, reasoning effort, and the checkpoint to roll back to."""

import uuid

from fastapi import APIRouter

from backend.core.events import RUNS
from backend.errors import NotFound
from backend.studies.queries import get_studied_run
from backend.studies.responses import run_studies, study_responses
from backend.studies.schemas import StartEffort
from backend.studies.service import EFFORT_TASKS, ONSET_ROLLOUTS
from backend.studies.tables import Study
from backend.web.dependencies import SessionDep, Viewer
from backend.web.streams import live_page

router = APIRouter()


@live_page(
    *(router, "/runs/{run_id}/studies", "studies/run.html", "studies"), topics=["run:{run_id}", RUNS], swapped="studies"
)
def show_studies(session: SessionDep, _: Viewer, run_id: uuid.UUID) -> dict[str, object]:
    run = get_studied_run(session, run_id)
    overview = run_studies(session, run)
    return {
        "run": run,
        "overview": overview,
        "is_over": overview.is_finished,
        "defaults": StartEffort(),
        "onset_rollouts": ONSET_ROLLOUTS,
        "effort_tasks": EFFORT_TASKS,
    }


@router.get("/studies/{study_id}/curve.json")
def show_curve(session: SessionDep, _: Viewer, study_id: uuid.UUID) -> dict[str, object]:
    """Columns for `static/js/chart.js`: each side's mean worth; x is the percentage of the reasoning that is kept."""
    study = session.get(Study, study_id)
    if study is None:
        raise NotFound("There is no such study.")
    (response,) = study_responses(session, get_studied_run(session, study.run_id), [study])
    series = [
        {"label": f"base: {side.name}" if side.is_base else side.name, "unit": "", "values": side.curve}
        for side in response.checkpoints
        if side.curve
    ]
    return {"x": [round(100 * each, 1) for each in response.fractions], "series": series, "replace": True}
