"""What a verdict has led to, as it is told beside it: the fixture, or why there is none, and who may go on."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role, Verdict
from backend.review import fixtures
from backend.review.fixtures import MOST_BY_VERDICT, Judged
from backend.review.tables import Fixture
from backend.team.tables import Person

MOST_NAMED = 3
"""People who may go on, by name."""


@dataclass(frozen=True, slots=True)
class Aftermath:
    """Of the verdict that counts on a rollout."""

    rollout_id: uuid.UUID
    environment: str
    verdict: Verdict
    fixture: Fixture | None
    """In force; it may have come from another rollout with the same actions."""
    lack: str
    """Of a hack that is no fixture: why."""
    can_be_kept: bool
    default_bound: float | None
    authors: Sequence[str]
    """Some of those who may repair a reward and set a bound."""

    @property
    def calls_for_more(self) -> bool:
        """Is something left to do that only a person can?"""
        return self.verdict is Verdict.BROKEN_REWARD or bool(self.lack)


def aftermath_of(session: Session, rollout_id: uuid.UUID) -> Aftermath | None:
    """None while no verdict on it says anything."""
    judged = fixtures.judged_rollout(session, rollout_id)
    if judged.verdict is None:
        return None
    fixture = fixtures.find_fixture(session, judged, judged.verdict)
    lack = _lack(session, judged) if judged.verdict is Verdict.HACK and fixture is None else ""
    return Aftermath(
        rollout_id=rollout_id,
        environment=judged.version.environment.name,
        verdict=judged.verdict,
        fixture=fixture,
        lack=lack,
        can_be_kept=judged.can_be_replayed,
        default_bound=judged.default_bound,
        authors=_authors(session) if lack or judged.verdict is Verdict.BROKEN_REWARD else (),
    )


def _lack(session: Session, judged: Judged) -> str:
    if not judged.can_be_replayed:
        return "the episode did not come to its end, so there is nothing to play again"
    if judged.default_bound is None:
        return "its version declares no floor, so an author has to say what it may earn"
    if judged.is_bulk:
        return "it was judged with its cluster, and nobody looked at it"
    if not fixtures.has_room(session, judged):
        return f"verdicts have put {MOST_BY_VERDICT} episodes of the environment there by themselves"
    return "its fixture was taken back"


def _authors(session: Session) -> Sequence[str]:
    may = [role for role in Role if role.includes(Role.AUTHOR)]
    statement = select(Person.name).where(Person.role.in_(may), Person.disabled_at.is_(None))
    return session.scalars(statement.order_by(Person.name, Person.id).limit(MOST_NAMED)).all()
