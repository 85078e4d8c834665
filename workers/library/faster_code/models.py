"""What goes over the wire: one action and one observation."""

from openenv.core.env_server.types import Action, Observation
from pydantic import Field


class FasterCodeAction(Action):
    """A program with the function."""

    code: str = Field(description="Python source that defines the function at its top level")


class FasterCodeObservation(Observation):
    """What to make faster, and afterwards how it went."""

    question: str = Field(default="", description="The purpose of the function and its current code")
    message: str = Field(default="", description="The result, once there is one")
