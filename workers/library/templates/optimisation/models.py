"""What goes over the wire: one action and one observation."""

from openenv.core.env_server.types import Action, Observation
from pydantic import Field


class __CLASS__Action(Action):
    """A proposal."""

    tour: str = Field(description="The stops in the order of the tour, as letters")


class __CLASS__Observation(Observation):
    """The policy's view of the task: the problem and the measurement of its last proposal."""

    message: str = Field(default="", description="The problem, or what was measured")
    attempts_left: int = Field(default=0, description="Proposals that remain")
