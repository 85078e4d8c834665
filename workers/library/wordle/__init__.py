"""Wordle as an OpenEnv environment."""

from .client import WordleEnv
from .models import WordleAction, WordleObservation

__all__ = ["WordleAction", "WordleEnv", "WordleObservation"]
