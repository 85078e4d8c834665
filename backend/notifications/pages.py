"""Pages of notices, and of the destinations that administrators set up."""

import uuid
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, Response
from sqlalchemy import select

from backend.core.events import NOTICES
from backend.domain.notifications.chat import WebhookFormat
from backend.domain.notifications.notices import (
    KIND_DESCRIPTIONS,
    PERSONAL_KINDS,
    DestinationKind,
    EmailFrequency,
    Security,
    examples_of,
)
from backend.notifications import queries
from backend.notifications.schemas import SETTINGS_PATH
from backend.notifications.tables import NoticeDestination
from backend.settings import get_settings
from backend.web.dependencies import Admin, SessionDep, Viewer
from backend.web.identity import find_actor
from backend.web.page import page, render_block, see_other
from backend.web.paging import After
from backend.web.streams import live_page

router = APIRouter()
SECURITY_LABELS = [
    (str(Security.STARTTLS), "STARTTLS, usually port 587"),
    (str(Security.TLS), "TLS from the start, usually port 465"),
    (str(Security.NONE), "None: unencrypted, without authentication"),
]


FORMAT_LABELS = [
    ("", "By the address: Slack and Discord are recognized"),
    (str(WebhookFormat.JSON), "JSON with all fields, for programs"),
    (str(WebhookFormat.SLACK), "Slack"),
    (str(WebhookFormat.DISCORD), "Discord"),
]
FREQUENCY_LABELS = [
    (str(EmailFrequency.NEVER), "Never"),
    (str(EmailFrequency.IMMEDIATELY), "Immediately"),
    (str(EmailFrequency.DAILY), "Daily: unread notices in one message"),
    (str(EmailFrequency.WEEKLY), "Weekly: unread notices in one message"),
]


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
    context = {
        "notices": found.items,
        "examples_of": examples_of,
        "unread_only": unread,
        "unread": actor.unread,
        "next_url": next_url,
        "preference": queries.preference_of(session, actor.person_id),
        "kinds": PERSONAL_KINDS,
        "frequencies": FREQUENCY_LABELS,
        "has_mail_server": queries.find_mail_server(session) is not None,
    }
    return page(request, "notifications/notices.html", context)


@router.post("/notices/{notice_id}/open")
def open_notice(session: SessionDep, actor: Viewer, notice_id: uuid.UUID) -> Response:
    notice = queries.get_notice(session, str(notice_id))
    queries.mark_read(session, actor.person_id, notice)
    return see_other(notice.path)


@live_page(
    *(router, SETTINGS_PATH, "notifications/destinations.html", "destination_list", "delivery_list"), topics=[NOTICES]
)
def show_destinations(session: SessionDep, _: Admin, after: After = None) -> dict[str, object]:
    deliveries = queries.list_deliveries(session, after=after)
    return {
        "destinations": session.scalars(select(NoticeDestination).order_by(NoticeDestination.name)).all(),
        "last": queries.last_deliveries(session),
        "deliveries": deliveries.items,
        "next_url": f"{SETTINGS_PATH}?after={deliveries.next}" if deliveries.next else "",
        "public_url": get_settings().public_url,
        "first_page": after is None,
    }


@router.get("/settings/notifications/{name}", response_class=HTMLResponse)
def show_destination_form(
    request: Request, session: SessionDep, _: Admin, name: str, kind: DestinationKind = DestinationKind.WEBHOOK
) -> HTMLResponse:
    """The form of a destination by name or id, or for `new` a blank one of this kind."""
    destination = None if name == "new" else queries.get_destination(session, name)
    selected = set(destination.kinds) if destination else set()
    context = {
        "destination": destination,
        "kind": destination.kind if destination else kind,
        "configuration": destination.configuration if destination else {},
        "kinds": [(each, text, str(each) in selected) for each, text in KIND_DESCRIPTIONS.items()],
        "securities": SECURITY_LABELS,
        "formats": FORMAT_LABELS,
    }
    return page(request, "notifications/destination.html", context)
