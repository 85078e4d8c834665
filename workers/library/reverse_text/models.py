"""What goes over the wire: one action and one observation."""

from openenv.core.env_server.types import Action, Observation
from pydantic import Field


class ReverseTextAction(Action):
    """The answer."""

    text: str = Field(description="The text, backwards")


class ReverseTextObservation(Observation):
    """The text, and afterwards how close the answer came."""

    text: str = Field(default="", description="The text to reverse")
    message: str = Field(default="", description="The result, once there is one")
