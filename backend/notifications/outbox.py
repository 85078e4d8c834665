"""Write notices and queue their deliveries in the transaction of the event; seal the secrets of destinations."""

import math
import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from sqlalchemy import Select, and_, any_, func, literal, or_, select
from sqlalchemy.orm import Session

from backend.core import events, sealing
from backend.core.queue import NOTICE_JOB, enqueue
from backend.domain.notifications.notices import DIGEST_PAUSES, DestinationKind, EmailFrequency, NoticeKind
from backend.domain.text import plain_text
from backend.domain.vocabulary import Queue
from backend.notifications import queries
from backend.notifications.tables import Notice, NoticeDelivery, NoticeDestination, NoticePreference
from backend.projects.queries import sees_project_of
from backend.settings import get_settings
from backend.team.tables import Person

MOST_IN_DIGEST = 50
JOB_PATIENCE = timedelta(minutes=5)
"""A delivery gets another job if the last one had no effect for this long."""


def announce(
    session: Session,
    *,
    kind: NoticeKind,
    title: str,
    text: str,
    path: str,
    run_id: uuid.UUID | None = None,
    evidence: Mapping[str, object] | None = None,
    person_id: uuid.UUID | None = None,
    for_destinations: bool = False,
) -> None:
    """Write a notice and queue its deliveries, in the transaction of the event that it reports.

    `title` is one line, `text` a few sentences, `path` the page to open (`/runs/…`). `person_id`: the only member who
    gets it. Destinations get notices to all members, and those to one member if `for_destinations`.
    """
    if not path.startswith("/"):
        raise ValueError(f"the path of a notice begins with /: {path!r}")
    notice = Notice(
        kind=kind,
        title=" ".join(plain_text(title).split())[:200],
        text=plain_text(text)[:10_000],
        path=path,
        run_id=run_id,
        evidence=_storable(evidence or {}),
        person_id=person_id,
    )
    session.add(notice)
    session.flush()
    takes_kind = or_(
        func.cardinality(NoticeDestination.kinds) == 0, literal(str(kind)) == any_(NoticeDestination.kinds)
    )
    destinations = select(NoticeDestination.id).where(NoticeDestination.is_enabled, takes_kind)
    if person_id is None or for_destinations:
        for destination_id in session.scalars(destinations.order_by(NoticeDestination.id)).all():
            create_delivery(session, notice.id, destination_id)
    if server := queries.find_mail_server(session):
        for recipient_id in session.scalars(_wants_mail(notice)).all():
            create_delivery(session, notice.id, server.id, recipient_id)
    events.announce(session, events.NOTICES)


def send_digests(session: Session) -> int:
    """Send members the notices of the last day or week that they have not read, and return the number of messages."""
    server = queries.find_mail_server(session)
    if server is None:
        return 0
    is_due = or_(
        *(
            and_(NoticePreference.email == frequency, NoticePreference.digest_at <= func.now() - pause)
            for frequency, pause in DIGEST_PAUSES.items()
        )
    )
    members = select(NoticePreference).join(Person, Person.id == NoticePreference.person_id)
    members = members.where(is_due, Person.disabled_at.is_(None)).with_for_update(skip_locked=True, of=NoticePreference)
    sent = 0
    for preference in session.scalars(members).all():
        since, preference.digest_at = preference.digest_at, func.now()
        visible = Person.id == preference.person_id, or_(Notice.run_id.is_(None), sees_project_of(Notice.run_id))
        news = select(Notice).where(
            Notice.created_at > since,
            queries.is_unread(preference.person_id),
            select(Person.id).where(*visible).correlate(Notice).exists(),
        )
        if preference.email_kinds:
            news = news.where(Notice.kind.in_(preference.email_kinds))
        notices = session.scalars(news.order_by(Notice.created_at.desc()).limit(MOST_IN_DIGEST + 1)).all()
        if not notices:
            continue
        lines = [f"{notice.title}\n{absolute_url(notice.path)}" for notice in notices[:MOST_IN_DIGEST]]
        if len(notices) > MOST_IN_DIGEST:
            lines.append("There are more.")
        digest = Notice(
            kind=NoticeKind.DIGEST,
            title=f"{len(notices[:MOST_IN_DIGEST])} unread notice{'s' if len(notices) > 1 else ''}",
            text="\n\n".join(lines),
            path="/notices?unread=true",
            person_id=preference.person_id,
            evidence={},
        )
        session.add(digest)
        session.flush()
        create_delivery(session, digest.id, server.id, preference.person_id)
        sent += 1
    return sent


def _wants_mail(notice: Notice) -> Select[uuid.UUID]:
    """Members who get it by email at once: they see its project and chose its kind."""
    chosen = or_(
        func.cardinality(NoticePreference.email_kinds) == 0,
        literal(str(notice.kind)) == any_(NoticePreference.email_kinds),
    )
    statement = (
        select(Person.id)
        .join(NoticePreference, NoticePreference.person_id == Person.id)
        .where(NoticePreference.email == EmailFrequency.IMMEDIATELY, chosen, Person.disabled_at.is_(None))
        .order_by(Person.id)
    )
    if notice.person_id:
        statement = statement.where(Person.id == notice.person_id)
    return statement.where(sees_project_of(notice.run_id)) if notice.run_id else statement


def create_delivery(
    session: Session, notice_id: uuid.UUID, destination_id: uuid.UUID, person_id: uuid.UUID | None = None
) -> NoticeDelivery:
    """`person_id`: send it to this member only."""
    delivery = NoticeDelivery(notice_id=notice_id, destination_id=destination_id, person_id=person_id)
    session.add(delivery)
    session.flush()
    enqueue_delivery(session, delivery)
    return delivery


def enqueue_delivery(session: Session, delivery: NoticeDelivery) -> None:
    """Queue a job that sends it now. Housekeeping queues no other one for JOB_PATIENCE."""
    delivery.next_at = func.now() + JOB_PATIENCE
    enqueue(session, NOTICE_JOB, queue=Queue.CPU, arguments={"delivery_id": str(delivery.id)})


def absolute_url(path: str) -> str:
    """Return the address of a page at this installation's public address."""
    return get_settings().public_url.rstrip("/") + path


def secret_of(destination: NoticeDestination) -> str | None:
    """Decrypt a destination's secret for the job that sends. Raises SecretUnreadable."""
    if destination.secret is None:
        return None
    try:
        return sealing.unseal(destination.secret, address_of(destination.kind, destination.configuration))
    except sealing.SecretUnreadable as error:
        advice = f"Enter the secret of {destination.name} again."
        raise sealing.SecretUnreadable(f"{sealing.SecretUnreadable.__doc__} {advice}") from error


def address_of(kind: DestinationKind, configuration: Mapping[str, object]) -> str:
    """Return what a secret is bound to. It is kept only while this stays the same."""
    if kind is DestinationKind.WEBHOOK:
        return f"webhook:{configuration['url']}"
    return "smtp:{security}:{user}@{host}:{port}".format_map(configuration)


def _storable(value: object) -> Any:
    """Convert any value to JSON that Postgres can store."""
    match value:
        case str():
            return plain_text(value)
        case Mapping():
            return {plain_text(str(key)): _storable(inner) for key, inner in value.items()}
        case list() | tuple() | set():
            return [_storable(inner) for inner in value]
        case float():
            return value if math.isfinite(value) else None
        case None | bool() | int():
            return value
        case _:
            return plain_text(str(value))
