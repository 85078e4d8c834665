"""The editor's panel for trying the saved draft, and live news of the draft."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session

from backend.core.events import topic_of
from backend.environments import drafts, queries, trials
from backend.environments.action_form import reply_of_form
from backend.environments.scaffold import with_generated
from backend.environments.schemas import ChooseTask
from backend.environments.validation import validate_package
from backend.errors import InvalidInput
from backend.web.dependencies import Author, SessionDep
from backend.web.form_data import SentForm, read_form
from backend.web.identity import Actor
from backend.web.page import page, see_other, wants_block
from backend.web.streams import live_blocks

router = APIRouter()
TEMPLATE = "environments/edit.html"


def topics_of(session: SessionDep, actor: Author, name: str) -> tuple[str, str]:
    """Resolve the topics before the stream begins, because the stream holds no transaction."""
    environment = queries.get_environment(session, name)
    return topic_of("draft", environment.id), topic_of("trial", environment.id, actor.person_id)


@router.get("/environments/{name}/edit/events", response_class=EventSourceResponse)
async def draft_events(
    request: Request,
    actor: Author,
    topics: Annotated[tuple[str, str], Depends(topics_of)],
    name: str,
    file: str = "",
) -> AsyncIterator[ServerSentEvent]:
    """Stream the trial's responses, and whether the open file was saved elsewhere."""
    read = partial(_context, actor=actor, name=name, path=file)
    async for event in live_blocks(request, topics, TEMPLATE, ("try_panel", "draft_news"), read):
        yield event


@router.post("/environments/{name}/try", response_class=HTMLResponse)
def reset_trial(
    request: Request,
    session: SessionDep,
    actor: Author,
    name: str,
    form: Annotated[ChooseTask, Depends(read_form(ChooseTask))],
) -> Response:
    """Start a new trial; open parts of the task are random."""
    trials.reset_trial(session, actor, queries.get_environment(session, name), form)
    return _answer(request, session, actor, name)


@router.post("/environments/{name}/try/{move}", response_class=HTMLResponse)
def continue_trial(
    request: Request,
    session: SessionDep,
    actor: Author,
    name: str,
    move: Literal["act", "back", "replay", "script"],
    sent: SentForm,
) -> Response:
    """Reply, undo the last reply, play the same replies on the saved draft, or let a scripted policy play to the end.

    `act`: a whole reply (`reply`), or an action by its fields, which is written as a reply.
    """
    environment = queries.get_environment(session, name)
    text = sent.get("reply") if move == "act" else sent.get("script", "gold")[:40]
    if text is None:
        draft = queries.get_draft(session, environment)
        manifest = validate_package(draft.files, environment.name).manifest
        view = trials.trial_view(session, draft, actor.person_id, manifest)
        if manifest is None or view is None:
            raise InvalidInput(fields={"reply": "Reset the draft with a task first."})
        text = reply_of_form(manifest.proctor.agent.action, view["fields"], sent)
    trials.continue_trial(session, actor, environment, move, text)
    return _answer(request, session, actor, name)


def _answer(request: Request, session: Session, actor: Actor, name: str) -> Response:
    if not wants_block(request):
        return see_other(f"/environments/{name}/edit#try-panel")
    return page(request, TEMPLATE, _context(session, actor, name, ""), block="try_partial")


def _context(session: Session, actor: Actor, name: str, path: str) -> dict[str, object]:
    """Return the context of the blocks that update live."""
    environment = queries.get_environment(session, name)
    draft = queries.get_draft(session, environment)
    files = with_generated(draft.files)
    manifest = validate_package(files, environment.name).manifest
    return {
        "environment": environment,
        "draft": draft,
        "editor": queries.person_name(session, draft.updated_by),
        "manifest": manifest,
        "trial": trials.trial_view(session, draft, actor.person_id, manifest),
        "path": path,
        "stored_mark": drafts.text_mark(files[path]) if path in files else "",  # empty: the file was deleted
    }
