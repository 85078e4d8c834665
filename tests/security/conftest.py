"""Browsers of the whole application on the test's session, and a served installation."""

from collections.abc import Iterator

import pytest

from tests.web_fixtures import *  # noqa: F403
from tests.web_server import web_of_installation, web_served


@pytest.fixture
def served(installation: None) -> Iterator[str]:
    """The address of the web application on an empty database."""
    with web_served(web_of_installation()) as address:
        yield address
