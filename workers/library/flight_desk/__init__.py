"""Flight desk as an OpenEnv environment."""

from .client import FlightDeskEnv
from .models import FlightDeskAction, FlightDeskObservation

__all__ = ["FlightDeskAction", "FlightDeskEnv", "FlightDeskObservation"]
