"""Pages of notices, and of the destinations that administrators set up."""

import uuid
from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session

from backend.core.events import NOTICES
from backend.domain.notifications.notices import KIND_DESCRIPTIONS, DestinationKind, NoticeKind, Security
from backend.notifications import queries, service
from backend.notifications.queries import NoticeView
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
SECURITY_LABELS = [
    (str(Security.STARTTLS), "STARTTLS, usually port 587"),
    (str(Security.TLS), "TLS from the start, usually port 465"),
    (str(Security.NONE), "None: unencrypted, without authentication"),
]


@dataclass(frozen=True, slots=True)
class NoticesPage:
    notices: Sequence[NoticeView]
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
    destination: NoticeDestination | None
    """None: the form is blank."""
    kind: DestinationKind
    configuration: Mapping[str, object]
    kinds: list[tuple[NoticeKind, str, bool]]
    """Kind, description, and whether the destination selects it."""
    securities: list[tuple[str, str]]


@router.get("/notices/bell", response_class=HTMLResponse)
def ring(request: Request, session: SessionDep, shown: Annotated[int, Query(ge=0)] = 0) -> Response:
    """Return the bell if the number of unread notices is not `shown`.

    Public: a browser that is signed out gets a bell that stops polling.
    """
    actor = find_actor(session, request)
    if actor is not None and actor.unread == shown:
        return Response(status_code=204)
    context = {"unread": actor.unread if actor else None}
    return HTMLResponse(render_block(request, "notifications/bell.html", "bell", context))


@router.get("/notices", response_class=HTMLResponse)
def show_notices(
    request: Request, session: SessionDep, actor: Viewer, after: After = None, unread: bool = False
) -> HTMLResponse:
    found = queries.list_notices(session, actor.person_id, unread=unread, after=after)
    next_url = f"/notices?after={found.next}{'&unread=true' if unread else ''}" if found.next else ""
    return page(request, "notifications/notices.html", NoticesPage(found.items, unread, actor.unread, next_url))


@router.post("/notices/read")
def mark_all_read(session: SessionDep, actor: Viewer) -> Response:
    queries.mark_all_read(session, actor.person_id)
    return see_other("/notices", notice="All notices are marked as read.")


@router.post("/notices/{notice_id}/open")
def open_notice(session: SessionDep, actor: Viewer, notice_id: uuid.UUID) -> Response:
    """Mark the notice as read and show its page."""
    notice = queries.get_notice(session, notice_id)
    queries.mark_read(session, actor.person_id, notice)
    return see_other(notice.path)


@router.post("/notices/{notice_id}/read")
def mark_read(session: SessionDep, actor: Viewer, notice_id: uuid.UUID) -> Response:
    queries.mark_read(session, actor.person_id, queries.get_notice(session, notice_id))
    return see_other("/notices")


@router.get("/settings/notifications", response_class=HTMLResponse)
def show_destinations(request: Request, session: SessionDep, _: Admin, after: After = None) -> HTMLResponse:
    return page(request, DESTINATIONS, _destinations_page(session, after))


def _destinations_page(session: Session, after: str | None) -> DestinationsPage:
    deliveries = queries.list_deliveries(session, after=after)
    return DestinationsPage(
        queries.list_destinations(session),
        queries.last_deliveries(session),
        deliveries.items,
        f"{SETTINGS_PATH}?after={deliveries.next}" if deliveries.next else "",
        get_settings().public_url,
        first_page=after is None,
    )


@router.get("/settings/notifications/events", response_class=EventSourceResponse)
async def follow_deliveries(request: Request, _: Admin) -> AsyncIterable[ServerSentEvent]:
    def render(session: Session) -> dict[str, str]:
        context = _destinations_page(session, None)
        blocks = ("destination_list", "delivery_list")
        return {name: render_block(request, DESTINATIONS, name, context) for name in blocks}

    async for event in live(request, (NOTICES,), render):
        yield event


@router.get("/settings/notifications/new", response_class=HTMLResponse)
def new_destination(request: Request, _: Admin, kind: DestinationKind = DestinationKind.WEBHOOK) -> HTMLResponse:
    return _destination_page(request, kind, None)


@router.post("/settings/notifications")
def add_destination(session: SessionDep, actor: Admin, form: DestinationForm) -> Response:
    destination = service.add_destination(session, actor, form)
    return see_other(SETTINGS_PATH, notice=f"{destination.name} was added. Send it a test.")


@router.get("/settings/notifications/{destination_id}", response_class=HTMLResponse)
def edit_destination(request: Request, session: SessionDep, _: Admin, destination_id: uuid.UUID) -> HTMLResponse:
    destination = queries.get_destination(session, str(destination_id))
    return _destination_page(request, destination.kind, destination)


def _destination_page(request: Request, kind: DestinationKind, destination: NoticeDestination | None) -> HTMLResponse:
    selected = set(destination.kinds) if destination else set()
    context = DestinationPage(
        destination,
        kind,
        destination.configuration if destination else {},
        [(each, text, str(each) in selected) for each, text in KIND_DESCRIPTIONS.items()],
        SECURITY_LABELS,
    )
    return page(request, "notifications/destination.html", context)


@router.post("/settings/notifications/{destination_id}")
def change_destination(session: SessionDep, actor: Admin, destination_id: uuid.UUID, form: DestinationForm) -> Response:
    destination = queries.get_destination(session, str(destination_id))
    service.change_destination(session, actor, destination, form)
    return see_other(SETTINGS_PATH, notice=f"{destination.name} was changed.")


@router.post("/settings/notifications/{destination_id}/delete")
def delete_destination(session: SessionDep, actor: Admin, destination_id: uuid.UUID) -> Response:
    destination = queries.get_destination(session, str(destination_id))
    name = destination.name
    service.delete_destination(session, actor, destination)
    return see_other(SETTINGS_PATH, notice=f"{name} was deleted.")


@router.post("/settings/notifications/{destination_id}/test")
def test_destination(session: SessionDep, actor: Admin, destination_id: uuid.UUID) -> Response:
    destination = queries.get_destination(session, str(destination_id))
    service.test_destination(session, actor, destination)
    notice = f"A test was sent to {destination.name}. See its status under Deliveries."
    return see_other(SETTINGS_PATH, notice=notice)


@router.post("/settings/notifications/deliveries/{delivery_id}/again")
def resend(session: SessionDep, actor: Admin, delivery_id: uuid.UUID) -> Response:
    delivery = service.resend(session, actor, delivery_id)
    return see_other(SETTINGS_PATH, notice=f"“{delivery.notice.title}” is sent again to {delivery.destination.name}.")
