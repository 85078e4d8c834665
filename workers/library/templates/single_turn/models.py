"""What goes over the wire: one action and one observation."""

from openenv.core.env_server.types import Action, Observation
from pydantic import Field


class __CLASS__Action(Action):
    """The policy's action."""

    answer: int = Field(description="The answer")


class __CLASS__Observation(Observation):
    """The policy's view of the task. Never put the answer here."""

    question: str = Field(default="", description="The question")
    message: str = Field(default="", description="The result, once there is one")
