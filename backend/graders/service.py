"""Adding, changing and deleting judges and questions; which policies can be asked; trying one.

Free of the web, because a run's end starts judges too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, Protocol

from pydantic import BaseModel, ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.queue import enqueue
from backend.core.tables import Job
from backend.domain.ids import new_id
from backend.domain.vocabulary import PolicyKind, Queue
from backend.errors import Conflict, InvalidInput
from backend.graders.queries import ASKABLE, I, get_inquiry
from backend.policies.tables import Policy
from backend.web.audit import audit

if TYPE_CHECKING:
    import uuid

    from backend.web.identity import Actor


class Request(Protocol):
    """What is asked for: the form, or the JSON body."""

    @property
    def name(self) -> str: ...

    @property
    def policy_id(self) -> uuid.UUID: ...

    def configuration(self) -> BaseModel:
        """Raises ValidationError."""


@dataclass(frozen=True, slots=True)
class Rules(Generic[I]):
    """Judges, or questions: what is refused of them, and in which words."""

    rows: type[I]
    work: str
    """What a policy does that is asked."""
    name_is_taken: type[Conflict]
    is_deleted: type[Conflict]
    was_used: type[Conflict]
    """What it said would mean two things, were it changed."""
    is_used: Callable[[Session, I], bool]
    blamed: Callable[[str], str]
    """The field of the form that a complaint about several of them is probably about."""

    def add(self, session: Session, actor: Actor, request: Request) -> I:
        row = self.rows(id=new_id(), created_by=actor.person_id)
        self._fill(session, row, request)
        session.add(row)
        session.flush()
        audit(session, actor, f"{row.noun}.add", row.noun, row.id, name=row.name)
        return row

    def change(self, session: Session, actor: Actor, id: uuid.UUID, request: Request) -> I:
        """Only while it was not used."""
        row = get_inquiry(session, self.rows, id)
        self.refuse_deleted(row)
        self.refuse_used(session, row)
        self._fill(session, row, request)
        session.flush()
        audit(session, actor, f"{row.noun}.change", row.noun, row.id, name=row.name)
        return row

    def delete(self, session: Session, actor: Actor, id: uuid.UUID) -> str:
        """Take it out of all choices and columns. What it said stays with the rollouts; its name, which is given back,
        is free again."""
        row = get_inquiry(session, self.rows, id)
        self.refuse_deleted(row)
        name = row.name
        audit(session, actor, f"{row.noun}.delete", row.noun, row.id, name=name)
        row.deleted_at = datetime.now(UTC)
        row.name = f"{name[:80]} (deleted {row.id.hex[-6:]})"
        session.flush()
        return name

    def begin_try(self, session: Session, row: I, job_name: str, arguments: Mapping[str, Any]) -> Job:
        """The job's row will hold what was asked and answered, and nothing else is stored."""
        self.refuse_useless(session, row)
        job = enqueue(session, job_name, queue=Queue.CPU, arguments={f"{row.noun}_id": str(row.id), **arguments})
        job.max_attempts = 2
        return job

    def can_change(self, session: Session, row: I) -> bool:
        return row.deleted_at is None and not self.is_used(session, row)

    def refuse_used(self, session: Session, row: I) -> None:
        if self.is_used(session, row):
            raise self.was_used

    def refuse_deleted(self, row: I) -> None:
        if row.deleted_at is not None:
            raise self.is_deleted

    def refuse_useless(self, session: Session, row: I) -> None:
        """One that was deleted, or whose policy cannot be asked (any more)."""
        self.refuse_deleted(row)
        self._refuse_policy(session.get_one(Policy, row.policy_id))

    def _fill(self, session: Session, row: I, request: Request) -> None:
        taken = select(self.rows.id).where(self.rows.name == request.name, self.rows.id != row.id)
        if session.scalar(taken):
            raise self.name_is_taken(f"There is a {row.noun} named {request.name} already.")
        policy = session.get(Policy, request.policy_id)
        if policy is None:
            raise InvalidInput(fields={"policy_id": "There is no such policy."})
        try:
            self._refuse_policy(policy)
            configuration = request.configuration()
        except Conflict as error:
            raise InvalidInput(fields={"policy_id": error.message}) from error
        except ValidationError as error:
            raise InvalidInput(fields=self._wrong_fields(error)) from error
        row.name, row.policy_id, row.policy = request.name, policy.id, policy
        row.configuration = configuration.model_dump(mode="json")

    def _refuse_policy(self, policy: Policy) -> None:
        if policy.deleted_at is not None:
            raise Conflict(f"The policy {policy.name} was deleted, so it cannot {self.work}.")
        if policy.kind is PolicyKind.LOCAL:
            raise Conflict(
                f"{policy.name} is a local checkpoint: serve it with `proctor serve` and add that endpoint as a policy."
            )
        if policy.kind not in ASKABLE:
            raise Conflict(f"{policy.name} cannot {self.work}: only a model endpoint or a script can.")

    def _wrong_fields(self, error: ValidationError) -> dict[str, str]:
        """By field of the form."""
        found: dict[str, str] = {}
        for item in error.errors(include_url=False, include_context=False, include_input=False):
            said = str(item["msg"]).removeprefix("Value error, ").rstrip(".") + "."
            name = str(item["loc"][0]) if item["loc"] else self.blamed(said)
            found.setdefault(name, said[:1].upper() + said[1:])
        return found
