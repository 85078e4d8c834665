"""/environments/NAME/red-team: attack the draft, take over fixtures, verify and publish a repair."""

from collections.abc import AsyncIterator
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.events import topic_of
from backend.domain.vocabulary import PolicyKind
from backend.environments import queries, red_team
from backend.policies.tables import Policy
from backend.web.dependencies import Author, SessionDep
from backend.web.page import page
from backend.web.streams import live_blocks

router = APIRouter()
TEMPLATE = "environments/red_team.html"


@router.get("/environments/{name}/red-team", response_class=HTMLResponse)
def show_red_team(request: Request, session: SessionDep, _: Author, name: str) -> HTMLResponse:
    return page(request, TEMPLATE, _context(session, name))


@router.get("/environments/{name}/red-team/events", response_class=EventSourceResponse)
async def red_team_events(request: Request, _: Author, name: str) -> AsyncIterator[ServerSentEvent]:
    """Stream the progress of an attack or a verification."""
    topics = (topic_of("red-team", name),)
    async for event in live_blocks(request, topics, TEMPLATE, ["red_team"], partial(_context, name=name)):
        yield event


def _context(session: Session, name: str) -> dict[str, object]:
    environment = queries.get_environment(session, name)
    found = {each.kind: each for each in red_team.newest(session, environment)}
    endpoints = select(Policy).where(Policy.kind == PolicyKind.OPENAI_API, Policy.deleted_at.is_(None))
    return {
        "environment": environment,
        "attack": found.get("attack"),
        "verification": found.get("verification"),
        "endpoints": [("", "none")]
        + [(str(row.id), row.name) for row in session.scalars(endpoints.order_by(Policy.name))],
        "is_over": all(each.is_finished for each in found.values()),
    }
