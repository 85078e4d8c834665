"""Number guessing with a careless reward as an OpenEnv environment."""

from .client import SloppyGuessEnv
from .models import SloppyGuessAction, SloppyGuessObservation

__all__ = ["SloppyGuessAction", "SloppyGuessEnv", "SloppyGuessObservation"]
