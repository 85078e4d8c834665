"""Limits on attempts, counted in Postgres before an attempt is evaluated, so that parallel ones cannot slip through."""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import case, func, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from backend.errors import TooManyRequests
from backend.team.tables import AttemptLimit


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `most` attempts in a window of this length."""

    name: str
    most: int
    window: timedelta


@dataclass(frozen=True, slots=True)
class Usage:
    """One attempt that was counted."""

    limit: Limit
    key: bytes
    count: int
    """With this attempt."""
    resets_at: datetime

    @property
    def is_exceeded(self) -> bool:
        return self.count > self.limit.most

    @property
    def is_first_refusal(self) -> bool:
        return self.count == self.limit.most + 1

    def refusal(self) -> "TooManyAttempts":
        return TooManyAttempts.until(self.resets_at)


class TooManyAttempts(TooManyRequests):
    """Too many wrong attempts."""

    @classmethod
    def until(cls, at: datetime) -> "TooManyAttempts":
        seconds = max(1, int((at - datetime.now(UTC)).total_seconds()) + 1)
        minutes = -(-seconds // 60)
        wait = f"Try again in {minutes} minute{'s' if minutes > 1 else ''}."
        return cls(f"Too many wrong attempts. {wait}", seconds)


def take(session: Session, limit: Limit, *subject: str) -> Usage:
    """Count one attempt of this subject. Its row stays locked until the transaction ends."""
    key = hashlib.sha256("\0".join((limit.name, *subject)).encode()).digest()
    now = func.clock_timestamp()
    is_over = AttemptLimit.resets_at <= now
    statement = (
        insert(AttemptLimit)
        .values(key=key, count=1, resets_at=now + limit.window)
        .on_conflict_do_update(
            index_elements=[AttemptLimit.key],
            set_={
                "count": case((is_over, 1), else_=func.least(AttemptLimit.count + 1, limit.most + 2)),
                "resets_at": case((is_over, now + limit.window), else_=AttemptLimit.resets_at),
            },
        )
        .returning(AttemptLimit.count, AttemptLimit.resets_at)
    )
    count, resets_at = session.execute(statement).one()
    return Usage(limit, key, count, resets_at)


def give_back(session: Session, usage: Usage) -> None:
    """The attempt was right: it does not count."""
    is_same_window = AttemptLimit.resets_at == usage.resets_at
    session.execute(
        update(AttemptLimit)
        .where(AttemptLimit.key == usage.key, is_same_window, AttemptLimit.count > 0)
        .values(count=AttemptLimit.count - 1)
        .execution_options(synchronize_session=False)
    )
