"""Number guessing as an OpenEnv environment."""

from .client import NumberGuessEnv
from .models import NumberGuessAction, NumberGuessObservation

__all__ = ["NumberGuessAction", "NumberGuessEnv", "NumberGuessObservation"]
