"""Handbook search as an OpenEnv environment."""

from .client import HandbookSearchEnv
from .models import HandbookSearchAction, HandbookSearchObservation

__all__ = ["HandbookSearchAction", "HandbookSearchEnv", "HandbookSearchObservation"]
