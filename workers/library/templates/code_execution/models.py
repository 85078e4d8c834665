"""What goes over the wire: one action and one observation."""

from openenv.core.env_server.types import Action, Observation
from pydantic import Field


class __CLASS__Action(Action):
    """What the policy does."""

    code: str = Field(description="Python source that defines the function at its top level")


class __CLASS__Observation(Observation):
    """What the policy sees. Never put a hidden test here."""

    question: str = Field(default="", description="The function that is asked for, with an example")
    message: str = Field(default="", description="The result, once there is one")
