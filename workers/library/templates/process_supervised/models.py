"""What goes over the wire: one action and one observation."""

from openenv.core.env_server.types import Action, Observation
from pydantic import Field


class __CLASS__Action(Action):
    """The whole working, one step a line."""

    working: str = Field(description="One line a step; the last line is the answer")


class __CLASS__Observation(Observation):
    """The policy's view of the task. Never put the answer here."""

    question: str = Field(default="", description="The problem")
    message: str = Field(default="", description="How far the working holds, once there is one")
