"""What goes over the wire: one action and one observation."""

from typing import Any

from openenv.core.env_server.types import Action, Observation
from pydantic import Field


class FlightDeskAction(Action):
    """One call."""

    tool: str = Field(description="Name of a tool; openenv.yaml lists them")
    arguments: dict[str, Any] = Field(default_factory=dict, description="Arguments of the tool")


class FlightDeskObservation(Observation):
    """The customer's request at the start, then the result of the last call."""

    message: str = Field(default="", description="The request, or what the desk's system says")
    time: str = Field(default="09:00", description="Every call takes three minutes, and flights sell out meanwhile")
