"""Browsers of every role, and environments to look at."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from fastapi import FastAPI
from sqlalchemy.orm import Session

from backend.app import create_app
from backend.db.models import Environment, EnvironmentVersion
from backend.environments.service import create_environment, publish_version
from tests.environments.packages import make_files
from tests.web_fixtures import *  # noqa: F403


@pytest.fixture(scope="session")
def built_app() -> FastAPI:
    """Made once: it has many routes."""
    return create_app()


@pytest.fixture
def app(built_app: FastAPI, session: Session) -> FastAPI:
    """On the test's session; a request that fails rolls back to where it began."""

    @contextmanager
    def transaction() -> Iterator[Session]:
        with session.begin_nested():
            yield session
            session.flush()
        session.info.pop("after_commit", None)

    built_app.state.transaction = transaction
    return built_app


@pytest.fixture
def guess(session: Session) -> Environment:
    """An environment that is only a draft."""
    return create_environment(session, None, "guess", make_files())


@pytest.fixture
def version(session: Session, guess: Environment) -> EnvironmentVersion:
    """Version 1 of `guess`."""
    return publish_version(session, None, guess, revision=1)
