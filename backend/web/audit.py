"""The audit log: every change is recorded with who made it, in the same transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Session

from backend.team.tables import AuditEvent

if TYPE_CHECKING:  # workers record changes too, and never load the web
    from backend.web.identity import Actor


def audit(
    session: Session, actor: Actor | None, action: str, subject_kind: str, subject_id: object, **detail: Any
) -> None:
    """Record a change, for example `audit(session, actor, "environment.publish", "environment", id, number=2)`."""
    person_id = actor.person_id if actor else None
    if actor and actor.is_token:
        detail["by_token"] = True
    session.add(
        AuditEvent(
            person_id=person_id,
            action=action,
            subject_kind=subject_kind,
            subject_id=str(subject_id),
            detail=detail,
        )
    )
