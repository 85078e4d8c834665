"""What goes over the wire: one action and one observation."""

from typing import Any

from openenv.core.env_server.types import Action, Observation
from pydantic import Field


class __CLASS__Action(Action):
    """One call."""

    tool: str = Field(description="Name of a tool; openenv.yaml lists them")
    arguments: dict[str, Any] = Field(default_factory=dict, description="Arguments of the tool")


class __CLASS__Observation(Observation):
    """The task at the start, then the result of the last call."""

    message: str = Field(default="", description="Text for the policy")
