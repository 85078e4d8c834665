"""Requesters of changes, and entries in the audit log. Without the web, because workers end runs too."""

import uuid
from typing import Any, Protocol

from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.team.tables import AuditEvent


class Asker(Protocol):
    """The requester of a change."""

    @property
    def person_id(self) -> uuid.UUID: ...
    @property
    def role(self) -> Role: ...
    @property
    def is_token(self) -> bool: ...


def note(
    session: Session, actor: Asker | None, action: str, subject_kind: str, subject_id: uuid.UUID, /, **detail: Any
) -> None:
    """Append to the audit log. Without an actor, the change was made by Proctor."""
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
