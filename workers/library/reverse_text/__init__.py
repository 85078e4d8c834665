"""Text reversal as an OpenEnv environment."""

from .client import ReverseTextEnv
from .models import ReverseTextAction, ReverseTextObservation

__all__ = ["ReverseTextAction", "ReverseTextEnv", "ReverseTextObservation"]
