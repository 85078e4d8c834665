"""Double check as an OpenEnv environment."""

from .client import DoubleCheckEnv
from .models import DoubleCheckAction, DoubleCheckObservation

__all__ = ["DoubleCheckAction", "DoubleCheckEnv", "DoubleCheckObservation"]
