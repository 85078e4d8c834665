"""What goes over the wire: one action and one observation."""

from openenv.core.env_server.types import Action, Observation
from pydantic import Field


class __CLASS__Action(Action):
    """What the policy does."""

    answer: int = Field(description="The answer")


class __CLASS__Observation(Observation):
    """What the policy sees. Never put the answer here."""

    question: str = Field(default="", description="The question")
    message: str = Field(default="", description="The result, once there is one")
