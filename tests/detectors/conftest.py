"""Browsers of every role, and packages on the real env host."""

from tests.library.conftest import serve
from tests.web_fixtures import *  # noqa: F403

__all__ = ["serve"]
