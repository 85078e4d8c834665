"""Pages: what people are told, and where administrators have it sent."""

import uuid
from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session

from backend.core.events import NOTICES
from backend.domain.notifications.notices import KIND_WORDS, DestinationKind, NoticeKind, Security
from backend.notifications import queries, service
from backend.notifications.queries import Told
from backend.notifications.schemas import DestinationRequest
from backend.notifications.service import SETTINGS_PATH
from backend.notifications.tables import NoticeDelivery, NoticeDestination
from backend.settings import get_settings
from backend.web.dependencies import Admin, SessionDep, Viewer
from backend.web.form_data import read_form
from backend.web.identity import find_actor
from backend.web.page import page, render_block, see_other
from backend.web.paging import After
from backend.web.streams import live

router = APIRouter()
DESTINATIONS = "notifications/destinations.html"
DestinationForm = Annotated[DestinationRequest, Depends(read_form(DestinationRequest))]


@dataclass(frozen=True, slots=True)
class BellPart:
    unread: int | None
    """None: nobody is signed in."""


@dataclass(frozen=True, slots=True)
class NoticesPage:
    told: Sequence[Told]
    unread_only: bool
    unread: int
    next_url: str


@dataclass(frozen=True, slots=True)
class DestinationsPage:
    destinations: Sequence[NoticeDestination]
    last: dict[uuid.UUID, NoticeDelivery]
    deliveries: Sequence[NoticeDelivery]
    next_url: str
    public_url: str
    first_page: bool


@dataclass(frozen=True, slots=True)
class DestinationPage:
    """The form: blank, or of a destination."""

    destination: NoticeDestination | None
    kind: DestinationKind
    configuration: dict[str, Any]
    kinds: list[tuple[NoticeKind, str, bool]]
    """With whether the destination takes it."""
    securities: list[tuple[str, str]]


_SECURITIES = [
    (Security.STARTTLS, "STARTTLS, usually port 587"),
    (Security.TLS, "TLS from the first byte, usually port 465"),
    (Security.NONE, "none, in the clear, without signing in"),
]


@router.get("/notices/bell", response_class=HTMLResponse)
def ring(request: Request, session: SessionDep, shown: Annotated[int, Query(ge=0)] = 0) -> Response:
    """How many are unread now, if not so many as `shown`. Public: who signed out gets a bell that asks no more."""
    actor = find_actor(session, request)
    if actor is not None and actor.unread == shown:
        return Response(status_code=204)
    part = BellPart(actor.unread if actor else None)
    return HTMLResponse(render_block(request, "notifications/bell.html", "bell", part))


@router.get("/notices", response_class=HTMLResponse)
def show_notices(
    request: Request, session: SessionDep, actor: Viewer, after: After = None, unread: bool = False
) -> HTMLResponse:
    found = queries.notices(session, actor.person_id, unread=unread, after=after)
    next_url = f"/notices?after={found.next}{'&unread=true' if unread else ''}" if found.next else ""
    return page(request, "notifications/notices.html", NoticesPage(found.items, unread, actor.unread, next_url))


@router.post("/notices/read")
def read_all(session: SessionDep, actor: Viewer) -> Response:
    queries.mark_all_read(session, actor.person_id)
    return see_other("/notices", notice="All notices are marked as read.")


@router.post("/notices/{notice_id}/open")
def open_notice(session: SessionDep, actor: Viewer, notice_id: uuid.UUID) -> Response:
    """To the page that it is about; it counts as read."""
    notice = queries.get_notice(session, notice_id)
    queries.mark_read(session, actor.person_id, notice)
    return see_other(notice.path)


@router.post("/notices/{notice_id}/read")
def read_one(session: SessionDep, actor: Viewer, notice_id: uuid.UUID) -> Response:
    queries.mark_read(session, actor.person_id, queries.get_notice(session, notice_id))
    return see_other("/notices")


@router.get("/settings/notifications", response_class=HTMLResponse)
def show_destinations(request: Request, session: SessionDep, _: Admin, after: After = None) -> HTMLResponse:
    return page(request, DESTINATIONS, _destinations(session, after))


@router.get("/settings/notifications/events", response_class=EventSourceResponse)
async def follow_deliveries(request: Request, _: Admin) -> AsyncIterable[ServerSentEvent]:
    def render(session: Session) -> dict[str, str]:
        context = _destinations(session, None)
        return {
            name: render_block(request, DESTINATIONS, name, context) for name in ("destination_list", "delivery_list")
        }

    async for event in live(request, (NOTICES,), render):
        yield event


@router.get("/settings/notifications/new", response_class=HTMLResponse)
def new_destination(request: Request, _: Admin, kind: DestinationKind = DestinationKind.WEBHOOK) -> HTMLResponse:
    return page(request, "notifications/destination.html", _form(kind, None))


@router.post("/settings/notifications")
def add_destination(session: SessionDep, actor: Admin, form: DestinationForm) -> Response:
    destination = service.add_destination(session, actor, form)
    return see_other(SETTINGS_PATH, notice=f"{destination.name} is ready. Send it a test.")


@router.get("/settings/notifications/{destination_id}", response_class=HTMLResponse)
def edit_destination(request: Request, session: SessionDep, _: Admin, destination_id: uuid.UUID) -> HTMLResponse:
    destination = queries.get_destination(session, destination_id)
    return page(request, "notifications/destination.html", _form(destination.kind, destination))


@router.post("/settings/notifications/{destination_id}")
def change_destination(session: SessionDep, actor: Admin, destination_id: uuid.UUID, form: DestinationForm) -> Response:
    destination = queries.get_destination(session, destination_id, lock=True)
    service.change_destination(session, actor, destination, form)
    return see_other(SETTINGS_PATH, notice=f"{destination.name} was changed.")


@router.post("/settings/notifications/{destination_id}/delete")
def delete_destination(session: SessionDep, actor: Admin, destination_id: uuid.UUID) -> Response:
    destination = queries.get_destination(session, destination_id, lock=True)
    name = destination.name
    service.delete_destination(session, actor, destination)
    return see_other(SETTINGS_PATH, notice=f"{name} was deleted. Nothing is sent there any more.")


@router.post("/settings/notifications/{destination_id}/test")
def try_destination(session: SessionDep, actor: Admin, destination_id: uuid.UUID) -> Response:
    destination = queries.get_destination(session, destination_id)
    service.try_destination(session, actor, destination)
    return see_other(
        SETTINGS_PATH, notice=f"A test is on its way to {destination.name}; the list below tells how it goes."
    )


@router.post("/settings/notifications/deliveries/{delivery_id}/again")
def send_again(session: SessionDep, actor: Admin, delivery_id: uuid.UUID) -> Response:
    delivery = service.send_again(session, actor, delivery_id)
    return see_other(SETTINGS_PATH, notice=f"“{delivery.notice.title}” is sent again to {delivery.destination.name}.")


def _destinations(session: Session, after: str | None) -> DestinationsPage:
    found = queries.deliveries(session, after=after)
    return DestinationsPage(
        queries.destinations(session),
        queries.last_deliveries(session),
        found.items,
        f"{SETTINGS_PATH}?after={found.next}" if found.next else "",
        get_settings().public_url,
        first_page=after is None,
    )


def _form(kind: DestinationKind, destination: NoticeDestination | None) -> DestinationPage:
    taken = set(destination.kinds) if destination else set()
    return DestinationPage(
        destination,
        kind,
        destination.configuration if destination else {},
        [(each, words, str(each) in taken) for each, words in KIND_WORDS.items()],
        [(str(security), words) for security, words in _SECURITIES],
    )
