"""Silver words as an OpenEnv environment."""

from .client import SilverWordsEnv
from .models import SilverWordsAction, SilverWordsObservation

__all__ = ["SilverWordsAction", "SilverWordsEnv", "SilverWordsObservation"]
