"""Browsers of every role."""

from tests.web_fixtures import *  # noqa: F403
