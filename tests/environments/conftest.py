"""Browsers of every role, and environments for pages."""

import pytest
from sqlalchemy.orm import Session

from backend.environments.service import create_environment, publish_version
from backend.environments.tables import Environment, EnvironmentVersion
from tests.environments.packages import make_files
from tests.web_fixtures import *  # noqa: F403


@pytest.fixture
def guess(session: Session) -> Environment:
    """An environment that is only a draft."""
    return create_environment(session, None, "guess", make_files())


@pytest.fixture
def version(session: Session, guess: Environment) -> EnvironmentVersion:
    """Version 1 of `guess`."""
    return publish_version(session, None, guess, revision=1)
