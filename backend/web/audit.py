"""The audit log: every change and who made it, recorded in the same transaction. Free of the web: workers use it."""

import uuid
from dataclasses import dataclass

from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.team.tables import AuditEvent


@dataclass(frozen=True, slots=True)
class Requester:
    """The person who requests a change. A request has an `Actor`; a job acts for the person who started it."""

    person_id: uuid.UUID
    role: Role = Role.AUTHOR
    """For a token: the token's role, never more than its member's."""
    is_token: bool = False


def audit(
    session: Session, actor: Requester | None, action: str, subject_kind: str, subject_id: object, **detail: object
) -> None:
    """Record a change, for example `audit(session, actor, "environment.publish", "environment", id, number=2)`.

    Without an actor, the change was made by Proctor.
    """
    if actor and actor.is_token:
        detail["by_token"] = True
    session.add(
        AuditEvent(
            person_id=actor.person_id if actor else None,
            action=action,
            subject_kind=subject_kind,
            subject_id=str(subject_id),
            detail=detail,
        )
    )
