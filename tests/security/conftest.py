"""Browsers of the whole application on the test's session, and a served installation."""

from collections.abc import Iterator

import pytest
from argon2 import PasswordHasher

from backend.team import passwords
from tests.web_fixtures import *  # noqa: F403
from tests.web_server import web_of_installation, web_served


@pytest.fixture
def served(installation: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the web application on an empty database, whose passwords are hashed with less work."""
    monkeypatch.setattr(passwords, "hasher", PasswordHasher(time_cost=1, memory_cost=64, parallelism=1))
    with web_served(web_of_installation()) as address:
        yield address
