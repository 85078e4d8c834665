"""What goes over the wire: one action and one observation."""

from openenv.core.env_server.types import Action, Observation
from pydantic import Field


class __CLASS__Action(Action):
    """The answer."""

    answer: str = Field(description="One or two sentences")


class __CLASS__Observation(Observation):
    """The policy's view of the task. Never put the answer here."""

    question: str = Field(default="", description="The notes, and what is to be made of them")
    message: str = Field(default="", description="The result, once there is one")
