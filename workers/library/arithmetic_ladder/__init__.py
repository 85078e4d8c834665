"""Arithmetic ladder as an OpenEnv environment."""

from .client import ArithmeticLadderEnv
from .models import ArithmeticLadderAction, ArithmeticLadderObservation

__all__ = ["ArithmeticLadderAction", "ArithmeticLadderEnv", "ArithmeticLadderObservation"]
