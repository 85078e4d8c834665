"""Faster code as an OpenEnv environment."""

from .client import FasterCodeEnv
from .models import FasterCodeAction, FasterCodeObservation

__all__ = ["FasterCodeAction", "FasterCodeEnv", "FasterCodeObservation"]
