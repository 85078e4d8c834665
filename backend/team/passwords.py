"""Passwords: argon2id with the library's defaults, and the few rules that help."""

from functools import lru_cache
from threading import BoundedSemaphore

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from backend.errors import InvalidInput

SHORTEST = 12
LONGEST = 200

_hasher = PasswordHasher()
_turns = BoundedSemaphore(4)
"""Each hashing takes 64 MiB; a flood of attempts waits instead of filling the memory."""


def hash_password(password: str) -> str:
    with _turns:
        return _hasher.hash(password)


def is_right(password: str, stored: str | None) -> bool:
    """Unknown people cost as much time as known ones, so that the time tells nobody who has an account."""
    expected = stored or _nobodys_hash()
    try:
        with _turns:
            return _hasher.verify(expected, password) and stored is not None
    except (VerificationError, InvalidHashError):
        return False


def needs_rehash(stored: str) -> bool:
    """Stored with weaker parameters than today's?"""
    return _hasher.check_needs_rehash(stored)


def refuse_weak(password: str, email: str) -> None:
    if len(password) < SHORTEST:
        raise InvalidInput(fields={"password": f"At least {SHORTEST} characters; a short sentence is good."})
    if len(password) > LONGEST:
        raise InvalidInput(fields={"password": f"At most {LONGEST} characters."})
    if email.partition("@")[0] in password.lower() or len(set(password)) < 5:
        raise InvalidInput(fields={"password": "Too easy to guess from your address or its repetition."})


@lru_cache(maxsize=1)
def _nobodys_hash() -> str:
    return _hasher.hash("nobody has this password")
