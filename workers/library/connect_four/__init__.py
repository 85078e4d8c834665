"""Connect four as an OpenEnv environment."""

from .client import ConnectFourEnv
from .models import ConnectFourAction, ConnectFourObservation

__all__ = ["ConnectFourAction", "ConnectFourEnv", "ConnectFourObservation"]
