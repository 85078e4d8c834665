"""Tic-tac-toe as an OpenEnv environment."""

from .client import TictactoeEnv
from .models import TictactoeAction, TictactoeObservation

__all__ = ["TictactoeAction", "TictactoeEnv", "TictactoeObservation"]
