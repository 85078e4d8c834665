"""Hand play in the browser: choose a task, send replies, read the rewards."""

import uuid

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from sqlalchemy import select
from sqlalchemy.orm import contains_eager

from backend.domain.vocabulary import RunKind
from backend.environments import play, queries
from backend.environments.action_form import reply_of_form
from backend.environments.tables import EnvironmentVersion
from backend.policies.queries import policy_options
from backend.runs.tables import Run
from backend.web.dependencies import Author, SessionDep, Viewer
from backend.web.form_data import SentForm
from backend.web.page import page, see_other, wants_block
from backend.web.streams import live_page

router = APIRouter()
TEMPLATE = "environments/play.html"


@router.get("/environments/{name}/play", response_class=HTMLResponse)
def choose_task(
    request: Request, session: SessionDep, actor: Author, name: str, version: int | None = None
) -> HTMLResponse:
    """The form for a new episode, and the person's latest ones."""
    environment = queries.get_environment(session, name)
    chosen = queries.get_version(session, environment, version)
    plays = (
        select(Run)
        .join(Run.version)
        .options(contains_eager(Run.version))
        .where(
            Run.kind == RunKind.PLAY,
            Run.created_by == actor.person_id,
            EnvironmentVersion.environment_id == environment.id,
        )
        .order_by(Run.created_at.desc(), Run.id.desc())
        .limit(10)
    )
    manifest = chosen.typed_manifest
    context = {
        "environment": environment,
        "versions": queries.versions_of(session, environment),
        "version": chosen,
        "manifest": manifest,
        "policies": policy_options(session, manifest) if manifest.proctor.seats else (),
        "plays": session.scalars(plays).all(),
    }
    return page(request, "environments/choose_task.html", context)


@live_page(
    *(router, "/environments/{name}/play/{run_id}", TEMPLATE, "play_board"), topics=["run:{run_id}"], swapped="partial"
)
def show_play(session: SessionDep, actor: Viewer, name: str, run_id: uuid.UUID) -> dict[str, object]:
    view = play.play_view(session, name, run_id)
    return {"play": view, "is_mine": view.run.created_by == actor.person_id, "is_over": view.is_over}


@router.post("/environments/{name}/play/{run_id}/reply", response_class=HTMLResponse)
def reply(
    request: Request, session: SessionDep, actor: Author, name: str, run_id: uuid.UUID, sent: SentForm
) -> Response:
    """Send a whole reply (`reply`), or an action by its fields (`field.<name>`), which is written as a reply."""
    view = play.play_view(session, name, run_id)
    text = sent["reply"] if "reply" in sent else reply_of_form(view.spec, view.fields, sent)
    revision = sent.get("revision", "")
    is_number = revision.isdecimal() and len(revision) < 10
    state = play.locked_state(session, actor, view.run, int(revision) if is_number else None)
    play.request_play(session, view.run, state, [*play.replies_of(session, view.run), play.plain_reply(text)])
    if wants_block(request):
        return page(request, TEMPLATE, show_play(session, actor, name, run_id), block="partial")
    return see_other(f"/environments/{name}/play/{run_id}")
