"""Shared links: their list for members, the public page behind each, and reports as files."""

import uuid
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, Response

from backend.domain.shares import ShareKind
from backend.operations.routes import stream_download
from backend.results.schemas import CompareRuns
from backend.shares import queries, service
from backend.shares.report import report_file
from backend.shares.schemas import CreateShare, ListShares, SharedItem, SharedLink
from backend.web.audit import audit
from backend.web.dependencies import ElsewhereAuthor, SessionDep, Viewer
from backend.web.field_messages import validate
from backend.web.form_data import read_form
from backend.web.identity import client_of
from backend.web.page import page
from backend.web.paging import After
from backend.web.standalone import style_sheet
from backend.web.templating import templates

router = APIRouter()
LIFETIMES = [(1, "1 day"), (7, "7 days"), (30, "30 days"), (90, "90 days")]


@router.get("/shares", response_class=HTMLResponse)
def list_shares(
    request: Request,
    session: SessionDep,
    actor: Viewer,
    kind: ShareKind | None = None,
    item: Annotated[list[str], Query(max_length=8)] = [],  # noqa: B006
    version: int | None = None,
    exam: str = "",
    after: After = None,
) -> HTMLResponse:
    """The list, and with an item the form to share it."""
    sent = {"kind": kind, "item": item, "version": version, "exam": exam}
    chosen = validate(SharedItem, sent) if kind and item else None
    return _page(request, session, chosen, after=after)


def _page(
    request: Request, session: SessionDep, chosen: SharedItem | None, *, after: str | None = None, link: str = ""
) -> HTMLResponse:
    found = queries.list_shares(session, ListShares(after=after, limit=50))
    context = {
        "shares": [(share, SharedLink.of_share(share)) for share in found.items],
        "next": found.next,
        "chosen": chosen,
        "link": link,
        "lifetimes": LIFETIMES,
    }
    return page(request, "shares/list.html", context, block="shares" if link else None)


@router.post("/shares", response_class=HTMLResponse)
def share_item(
    request: Request,
    session: SessionDep,
    actor: ElsewhereAuthor,
    form: Annotated[CreateShare, Depends(read_form(CreateShare))],
) -> HTMLResponse:
    share, link = service.create_share(session, actor, form)
    audit(session, actor, "share.create", "share", share.id, name=share.name, kind=str(share.kind), days=form.days)
    return _page(request, session, None, link=link)


@router.get("/runs/{run_id}/report.html")
def download_run_report(request: Request, run_id: uuid.UUID, session: SessionDep, actor: Viewer) -> Response:
    return stream_download(request, report_file(session, actor, SharedItem(kind=ShareKind.RUN, item=[str(run_id)])))


@router.get("/compare/report.html")
def download_comparison_report(
    request: Request, session: SessionDep, actor: Viewer, choice: Annotated[CompareRuns, Query()]
) -> Response:
    item = validate(SharedItem, {"kind": ShareKind.COMPARISON, "item": choice.references})
    return stream_download(request, report_file(session, actor, item))


@router.get("/shared/{secret}")
def show_shared(request: Request, secret: str) -> Response:
    """The only page that people outside of the team see. It reads no cookie."""
    with request.app.state.transaction() as session:
        admission = service.admit(session, secret, client_of(request))
    if admission.refused:
        refusal = admission.refused.refusal()
        headers = {"Retry-After": str(refusal.retry_after_seconds)}
        return _public("Too many requests", "Wait a few minutes, then open the link again.", 429, headers)
    try:
        if admission.share_id is None:
            raise service.LinkUnavailable
        with request.app.state.transaction() as session:
            document = service.open_share(session, admission.share_id)
    except service.LinkUnavailable as error:
        return _public("Link not available", error.message, 404)
    return _as_public(HTMLResponse(document))


def _public(title: str, message: str, status: int, headers: dict[str, str] | None = None) -> Response:
    context = {"title": title, "message": message, "style": style_sheet()}
    html = templates().get_template("shares/unavailable.html").render(context)
    return _as_public(HTMLResponse(html, status_code=status, headers=headers))


def _as_public(response: Response) -> Response:
    """Load nothing, be found by no search engine, and send the secret nowhere."""
    response.headers["Content-Security-Policy"] = f"{style_sheet().policy}; frame-ancestors 'none'"
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["X-Robots-Tag"] = "noindex, nofollow"
    return response
