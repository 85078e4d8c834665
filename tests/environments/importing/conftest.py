"""Browsers of every role, and foreign packages as bytes."""

from tests.web_fixtures import *  # noqa: F403
