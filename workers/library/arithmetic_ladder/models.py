"""What goes over the wire: one action and one observation."""

from openenv.core.env_server.types import Action, Observation
from pydantic import Field


class ArithmeticLadderAction(Action):
    """The answer."""

    answer: str = Field(description="A whole number, a decimal or a fraction such as 3/4")


class ArithmeticLadderObservation(Observation):
    """The problem, and afterwards whether it was solved."""

    question: str = Field(default="", description="The problem")
    message: str = Field(default="", description="The result, once there is one")
