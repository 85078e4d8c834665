"""Packages with one fault each, on the real env host."""

from tests.library.conftest import serve

__all__ = ["serve"]
