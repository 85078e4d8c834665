"""What goes over the wire: one action and one observation."""

from openenv.core.env_server.types import Action, Observation
from pydantic import Field


class __CLASS__Action(Action):
    """The policy's action."""

    code: str = Field(description="Python source that defines the function at its top level")


class __CLASS__Observation(Observation):
    """The policy's view of the task. Never put a hidden test here."""

    question: str = Field(default="", description="The requested function, with an example")
    message: str = Field(default="", description="The result, once there is one")
