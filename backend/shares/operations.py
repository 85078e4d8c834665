"""Operations on shared links, and reports as files."""

from sqlalchemy.orm import Session

from backend.domain.shares import ShareKind
from backend.domain.vocabulary import Role
from backend.operations.declaration import operation
from backend.operations.schemas import Download
from backend.runs import references as _references  # noqa: F401  how addresses name runs
from backend.runs.tables import Run
from backend.shares import queries, service
from backend.shares.report import report_file
from backend.shares.schemas import (
    CreateShare,
    ListShares,
    NewShare,
    ReportRequest,
    SharedItem,
    SharedLink,
)
from backend.shares.tables import Share
from backend.web.identity import Actor
from backend.web.paging import Page


@operation("GET /shares", role=Role.VIEWER, command="share list")
def list_shares(session: Session, actor: Actor, request: ListShares) -> Page[SharedLink]:
    """List the read-only links to items that you see, newest first."""
    found = queries.list_shares(session, request)
    return Page(items=[SharedLink.of_share(share) for share in found.items], next=found.next)


@operation("POST /shares", role=service.SHARING_ROLE, command="share create", status=201, in_project=True)
def create_share(session: Session, actor: Actor, request: CreateShare) -> NewShare:
    """Create a read-only link to a run, comparison, environment, leaderboard or safeguards report.

    Anyone with the link can read that item, without signing in, until it expires or you revoke it.
    """
    share, link = service.create_share(session, actor, request)
    return NewShare(**SharedLink.of_share(share).model_dump(), link=link)


@operation(
    "DELETE /shares/{share}",
    role=service.SHARING_ROLE,
    command="share revoke",
    status=200,
    page="/shares",
    notice="The link to {name} no longer works.",
)
def revoke_share(session: Session, actor: Actor, share: Share) -> SharedLink:
    """Revoke a link, so that it stops working at once."""
    return SharedLink.of_share(service.revoke_share(session, actor, share))


@operation("GET /runs/{run}/report", role=Role.VIEWER, noun="runs", command="run report")
def get_run_report(session: Session, actor: Actor, run: Run, request: ReportRequest) -> Download:
    """Download a report of a run, or of a comparison with other runs, as one HTML file that opens offline."""
    kind = ShareKind.COMPARISON if request.against else ShareKind.RUN
    return report_file(session, actor, SharedItem(kind=kind, item=[*request.against, str(run.id)]))
