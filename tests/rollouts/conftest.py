"""Browsers of every role, whose requests may come at the same time."""

from tests.runs.conftest import *  # noqa: F403
