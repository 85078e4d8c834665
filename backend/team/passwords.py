"""Passwords: argon2id with the library's defaults, and the few rules that help."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from threading import BoundedSemaphore, Lock

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from backend.errors import InvalidInput, TooManyRequests

SHORTEST = 12
LONGEST = 200

_hasher = PasswordHasher()
_turns = BoundedSemaphore(4)
"""Each hashing takes 64 MiB; a flood of attempts waits instead of filling the memory."""
_places = BoundedSemaphore(16)
"""Attempts of unknown browsers that are hashed or wait for it; more would hold all threads that serve pages."""


_first = Lock()
"""The first attempts at unknown accounts do not all compute the same hash."""


class PasswordsAreBusy(TooManyRequests):
    """Many people are signing in right now. Try again in a few seconds."""


def hash_password(password: str) -> str:
    with _turns:
        return _hasher.hash(password)


def is_right(password: str, stored: str | None, *, may_wait: bool = True) -> bool:
    """Verify; unknown people cost as much time as known ones, so that the time shows nobody who has an account.

    Raises PasswordsAreBusy where too many wait and this one may not.
    """
    with _place(may_wait):
        with _first:
            expected = stored or _nobodys_hash()
        try:
            with _turns:
                return _hasher.verify(expected, password) and stored is not None
        except (VerificationError, InvalidHashError):
            return False


@contextmanager
def _place(may_wait: bool) -> Iterator[None]:
    if may_wait:
        yield
    elif _places.acquire(blocking=False):
        try:
            yield
        finally:
            _places.release()
    else:
        raise PasswordsAreBusy(retry_after_seconds=5)


def needs_rehash(stored: str) -> bool:
    """Stored with weaker parameters than today's?"""
    return _hasher.check_needs_rehash(stored)


def refuse_weak(password: str, email: str) -> None:
    """Raises InvalidInput for the field `password`."""
    if len(password) < SHORTEST:
        raise InvalidInput(fields={"password": f"At least {SHORTEST} characters; a short sentence is good."})
    if len(password) > LONGEST:
        raise InvalidInput(fields={"password": f"At most {LONGEST} characters."})
    if email.partition("@")[0] in password.lower() or len(set(password)) < 5:
        raise InvalidInput(fields={"password": "This is too easy to guess: it repeats itself or your address."})


@lru_cache(maxsize=1)
def _nobodys_hash() -> str:
    return hash_password("nobody has this password")
