"""What goes over the wire: one action and one observation."""

from openenv.core.env_server.types import Action, Observation
from pydantic import Field


class __CLASS__Action(Action):
    """The whole working, one step a line."""

    working: str = Field(description="One line a step; the last line is the answer")


class __CLASS__Observation(Observation):
    """What the policy sees. Never put the answer here."""

    question: str = Field(default="", description="What is to be worked out")
    message: str = Field(default="", description="How far the working holds, once there is one")
