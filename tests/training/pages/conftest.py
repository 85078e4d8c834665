"""Browsers of every role for the pages of training."""

from tests.web_fixtures import *  # noqa: F403
