"""The audit log: every change and who made it, recorded in the same transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy.orm import Session

from backend.team.tables import AuditEvent

if TYPE_CHECKING:  # workers record changes too, and never load the web
    from backend.web.identity import Actor


def audit(
    session: Session, actor: Actor | None, action: str, subject_kind: str, subject_id: object, **detail: object
) -> None:
    """Record a change, for example `audit(session, actor, "environment.publish", "environment", id, number=2)`."""
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
