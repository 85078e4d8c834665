"""Create, revoke and open links."""

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session, joinedload

from backend.core.row_access import limit_to
from backend.domain.projects.access import ProjectAccess
from backend.domain.vocabulary import Role
from backend.errors import AppError, Conflict, NotAllowed, NotFound
from backend.settings import get_settings
from backend.shares.report import render_document
from backend.shares.schemas import CreateShare, SharedItem
from backend.shares.subjects import SharedSubject, find_subject
from backend.shares.tables import Share
from backend.team.passwords import Limit, LimitedAttempt, count_attempt, uncount_attempt
from backend.web.identity import Actor, ClientInfo, access_of_person, hash_secret, new_secret

SHARING_ROLE = Role.AUTHOR
"""Lowest role in the item's project that may share it."""
MAX_ACTIVE = 200
"""Active links of one member."""
UNKNOWN_LINKS = Limit("unknown shared links from a network", 60, timedelta(minutes=5))
VIEWS = Limit("views of a shared link", 60, timedelta(minutes=1))
_USED_EVERY = timedelta(minutes=1)
"""Precision of the recorded last use."""


class LinkUnavailable(NotFound):
    """This link is not available. It may have expired or been revoked. Ask the person who sent it for a new one."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a visitor may open a link."""

    share_id: uuid.UUID | None = None
    refused: LimitedAttempt | None = None
    """The limit that was exceeded."""


def create_share(session: Session, actor: Actor, request: CreateShare) -> tuple[Share, str]:
    """Create a link and return it with its secret, which is stored only as a hash."""
    item = SharedItem.model_validate(request.model_dump(include=set(SharedItem.model_fields)))
    subject = find_subject(session, item)
    _refuse_lower_role(actor.access, subject)
    own = (Share.created_by == actor.person_id, Share.revoked_at.is_(None), Share.expires_at > func.now())
    if (session.scalar(select(func.count()).where(*own)) or 0) >= MAX_ACTIVE:
        raise Conflict(f"You have {MAX_ACTIVE} active links, the maximum. Revoke some first.")
    secret = new_secret()
    share = Share(
        kind=item.kind,
        name=subject.name[:300],
        run_id=subject.run_id,
        environment_id=subject.environment_id,
        choice=subject.item.model_dump(mode="json"),
        token_hash=hash_secret(secret),
        created_by=actor.person_id,
        expires_at=datetime.now(UTC) + timedelta(days=request.days),
    )
    session.add(share)
    session.flush()
    session.refresh(share, ["creator", "created_at"])
    return share, f"{get_settings().public_url.rstrip('/')}/shared/{secret}"


def _refuse_lower_role(access: ProjectAccess, subject: SharedSubject) -> None:
    for project_id in subject.project_ids:
        role = access.role_in(project_id)
        if role is None or not role.includes(SHARING_ROLE):
            raise NotAllowed(f"Sharing this needs the role {SHARING_ROLE} in its project; yours is {role or 'none'}.")


def revoke_share(session: Session, actor: Actor, share: Share) -> Share:
    """End a link. Its creator and administrators may."""
    if share.created_by != actor.person_id and not actor.may(Role.ADMIN):
        raise NotAllowed("Only the member who created a link and administrators may revoke it.")
    if share.revoked_at is None:
        share.revoked_at = datetime.now(UTC)
    session.flush()
    return share


def admit(session: Session, secret: str, client: ClientInfo) -> Admission:
    """Find the link of a secret and count its use. Guesses are limited by network, and views by link."""
    guess = count_attempt(session, UNKNOWN_LINKS, client.network)
    if guess.is_exceeded:
        return Admission(refused=guess)
    share = session.scalar(select(Share).where(Share.token_hash == hash_secret(secret)))
    if share is None or not share.is_active:
        return Admission()
    uncount_attempt(session, guess)
    view = count_attempt(session, VIEWS, str(share.id))
    if view.is_exceeded:
        return Admission(refused=view)
    now = datetime.now(UTC)
    if share.used_at is None or now - share.used_at > _USED_EVERY:
        share.used_at = now
    share.views = Share.views + 1
    return Admission(share.id)


def open_share(session: Session, share_id: uuid.UUID) -> str:
    """Return the document behind a link. Raises LinkUnavailable if its creator may no longer share the item."""
    with_creator = select(Share).options(joinedload(Share.creator)).where(Share.id == share_id)
    share = session.scalars(with_creator).one_or_none()
    access = access_of_person(session, share.created_by) if share else None
    if share is None or not share.is_active or access is None:
        raise LinkUnavailable
    until = share.expires_at.strftime("%-d %B %Y")
    note = f"Read-only, shared by {share.creator.name} until {until}."
    limit_to(session, access)
    try:
        subject = find_subject(session, SharedItem.model_validate(share.choice))
        _refuse_lower_role(access, subject)
        return render_document(session, subject, note)
    except AppError as error:
        raise LinkUnavailable from error
