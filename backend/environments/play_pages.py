"""Hand play in the browser: choose a task, send replies, read the rewards."""

import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session

from backend.core.events import topic_of
from backend.domain.environments.manifest import Manifest
from backend.domain.vocabulary import Split
from backend.environments import play, play_queries, queries
from backend.environments.action_form import reply_of_form
from backend.environments.play_queries import PlayView, play_view
from backend.environments.schemas import ChooseTask
from backend.errors import InvalidInput
from backend.web.dependencies import Author, SessionDep, Viewer
from backend.web.form_data import SentForm, read_form
from backend.web.identity import Actor
from backend.web.page import page, see_other, wants_block
from backend.web.streams import live_blocks

router = APIRouter()
TEMPLATE = "environments/play.html"


@dataclass(frozen=True, slots=True)
class PlayPage:
    play: PlayView
    is_mine: bool

    @property
    def is_over(self) -> bool:
        return self.play.is_over


@router.get("/environments/{name}/play", response_class=HTMLResponse)
def choose_task(
    request: Request, session: SessionDep, actor: Author, name: str, version: int | None = None
) -> HTMLResponse:
    chosen = ChooseTask.model_construct(version=version, split=Split.TRAIN, level=None, index=None, seed=None)
    return _choose_page(request, session, actor.person_id, name, chosen)


@router.post("/environments/{name}/play", response_class=HTMLResponse)
def start_play(
    request: Request,
    session: SessionDep,
    actor: Author,
    name: str,
    form: Annotated[ChooseTask, Depends(read_form(ChooseTask))],
) -> Response:
    environment = queries.get_environment(session, name)
    version = queries.get_version(session, environment, form.version)
    try:
        manifest = Manifest.model_validate(version.manifest)
        task = play.choose_task(manifest, form.split, level=form.level, index=form.index, seed=form.seed)
    except InvalidInput as error:
        if wants_block(request):
            raise
        return _choose_page(request, session, actor.person_id, name, form, error)
    run = play.start_play(session, actor, environment, version, task)
    return see_other(f"/environments/{name}/play/{run.id}")


@router.get("/environments/{name}/play/{run_id}", response_class=HTMLResponse)
def show_play(request: Request, session: SessionDep, actor: Viewer, name: str, run_id: uuid.UUID) -> HTMLResponse:
    return page(request, TEMPLATE, _page(session, actor.person_id, name, run_id), block="partial")


def _page(session: Session, person_id: uuid.UUID, name: str, run_id: uuid.UUID) -> PlayPage:
    view = play_view(session, name, run_id)
    return PlayPage(view, view.run.created_by == person_id)


@router.get("/environments/{name}/play/{run_id}/events", response_class=EventSourceResponse)
async def play_events(request: Request, actor: Viewer, name: str, run_id: uuid.UUID) -> AsyncIterator[ServerSentEvent]:
    read = partial(_page, person_id=actor.person_id, name=name, run_id=run_id)
    async for event in live_blocks(request, (topic_of("run", run_id),), TEMPLATE, ["play_board"], read):
        yield event


@router.post("/environments/{name}/play/{run_id}/reply", response_class=HTMLResponse)
def reply(
    request: Request, session: SessionDep, actor: Author, name: str, run_id: uuid.UUID, sent: SentForm
) -> Response:
    """Send a whole reply (`reply`), or an action by its fields (`field.<name>`), which is written as a reply."""
    view = play_view(session, name, run_id)
    text = sent["reply"] if "reply" in sent else reply_of_form(view.spec, view.fields, sent)
    play.send_reply(session, actor, view.run, text, _revision(sent))
    return _moved_on(request, session, actor, name, run_id)


@router.post("/environments/{name}/play/{run_id}/back", response_class=HTMLResponse)
def take_back(
    request: Request, session: SessionDep, actor: Author, name: str, run_id: uuid.UUID, sent: SentForm
) -> Response:
    play.take_back(session, actor, play_queries.get_play(session, name, run_id), _revision(sent))
    return _moved_on(request, session, actor, name, run_id)


@router.post("/environments/{name}/play/{run_id}/retry", response_class=HTMLResponse)
def try_again(
    request: Request, session: SessionDep, actor: Author, name: str, run_id: uuid.UUID, sent: SentForm
) -> Response:
    play.try_again(session, actor, play_queries.get_play(session, name, run_id), _revision(sent))
    return _moved_on(request, session, actor, name, run_id)


def _revision(sent: Mapping[str, str]) -> int | None:
    text = sent.get("revision", "")
    return int(text) if text.isdecimal() and len(text) < 10 else None


def _moved_on(request: Request, session: Session, actor: Actor, name: str, run_id: uuid.UUID) -> Response:
    if wants_block(request):
        return show_play(request, session, actor, name, run_id)
    return see_other(f"/environments/{name}/play/{run_id}")


def _choose_page(
    request: Request,
    session: Session,
    person_id: uuid.UUID,
    name: str,
    chosen: ChooseTask,
    error: InvalidInput | None = None,
) -> HTMLResponse:
    environment = queries.get_environment(session, name)
    version = queries.get_version(session, environment, chosen.version)
    context = {
        "environment": environment,
        "versions": [row.version for row in queries.versions_of(session, environment)],
        "version": version,
        "manifest": Manifest.model_validate(version.manifest),
        "chosen": chosen,
        "plays": play_queries.plays_of(session, environment, person_id),
        "errors": error.fields if error else {},
    }
    return page(request, "environments/choose_task.html", context, status=error.status if error else 200)
