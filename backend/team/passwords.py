"""Passwords: argon2id with the library's defaults, a few rules, and limits on attempts."""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from threading import BoundedSemaphore, Lock

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from sqlalchemy import case, func, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from backend.errors import InvalidInput, TooManyRequests
from backend.team.tables import AttemptLimit

SHORTEST = 12
LONGEST = 200

hasher = PasswordHasher()
_turns = BoundedSemaphore(4)
"""Each hashing takes 64 MiB; a flood of attempts waits instead of filling the memory."""
_places = BoundedSemaphore(16)
"""Attempts of unknown browsers that are hashed or wait for it. More would hold all threads that serve pages."""
_first = Lock()
"""The first attempts at unknown accounts do not all compute the same hash."""


class PasswordsAreBusy(TooManyRequests):
    """Many people are signing in right now. Try again in a few seconds."""


class TooManyAttempts(TooManyRequests):
    """Too many wrong attempts."""


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `most` attempts in a window of this length."""

    name: str
    most: int
    window: timedelta


@dataclass(frozen=True, slots=True)
class LimitedAttempt:
    """A counted attempt."""

    limit: Limit
    key: bytes
    count: int
    """Including this attempt."""
    resets_at: datetime

    @property
    def is_exceeded(self) -> bool:
        return self.count > self.limit.most

    @property
    def is_first_refusal(self) -> bool:
        return self.count == self.limit.most + 1

    def refusal(self) -> TooManyAttempts:
        seconds = max(1, int((self.resets_at - datetime.now(UTC)).total_seconds()) + 1)
        minutes = -(-seconds // 60)
        advice = f"Try again in {minutes} minute{'s' if minutes > 1 else ''}."
        return TooManyAttempts(f"Too many wrong attempts. {advice}", seconds)


def count_attempt(session: Session, limit: Limit, *subject: str) -> LimitedAttempt:
    """Count an attempt before it is evaluated, so that parallel ones cannot slip through.

    The row stays locked until the transaction ends.
    """
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
    return LimitedAttempt(limit, key, count, resets_at)


def uncount_attempt(session: Session, usage: LimitedAttempt) -> None:
    """Take back a counted attempt that was right."""
    is_same_window = AttemptLimit.resets_at == usage.resets_at
    session.execute(
        update(AttemptLimit)
        .where(AttemptLimit.key == usage.key, is_same_window, AttemptLimit.count > 0)
        .values(count=AttemptLimit.count - 1)
        .execution_options(synchronize_session=False)
    )


@lru_cache(maxsize=1)
def _hash_of_unknown_account() -> str:
    return hash_password("nobody has this password")


def hash_password(password: str) -> str:
    with _turns:
        return hasher.hash(password)


def is_right(password: str, stored: str | None, *, may_wait: bool = True) -> bool:
    """Verify a password. Unknown accounts take as long as known ones, so that timing does not reveal accounts.

    Raises PasswordsAreBusy if too many attempts wait and this one may not.
    """
    if not may_wait and not _places.acquire(blocking=False):
        raise PasswordsAreBusy(retry_after_seconds=5)
    try:
        with _first:
            expected = stored or _hash_of_unknown_account()
        with _turns:
            return hasher.verify(expected, password) and stored is not None
    except (VerificationError, InvalidHashError):
        return False
    finally:
        if not may_wait:
            _places.release()


def refuse_weak(password: str, email: str) -> None:
    """Raises InvalidInput for the field `password`."""
    if len(password) < SHORTEST:
        raise InvalidInput(fields={"password": f"At least {SHORTEST} characters; a short sentence is good."})
    if len(password) > LONGEST:
        raise InvalidInput(fields={"password": f"At most {LONGEST} characters."})
    if email.partition("@")[0] in password.lower() or len(set(password)) < 5:
        raise InvalidInput(fields={"password": "Too easy to guess: it contains your address or repeats characters."})
