"""Browsers of every role; passwords hashed by the real algorithm with less work."""

import pytest
from argon2 import PasswordHasher

from backend.team import passwords
from tests.web_fixtures import *  # noqa: F403


@pytest.fixture(autouse=True)
def _cheap_hashing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "hasher", PasswordHasher(time_cost=1, memory_cost=64, parallelism=1))
