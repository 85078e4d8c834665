"""What goes over the wire: one action and one observation."""

from openenv.core.env_server.types import Action, Observation
from pydantic import Field


class SloppyGuessAction(Action):
    """One attempt."""

    guess: int = Field(
        description="A number from 1 to 100",
        # Described, not enforced: a number out of range is a wasted attempt, not a broken message.
        json_schema_extra={"minimum": 1, "maximum": 100},
    )


class SloppyGuessObservation(Observation):
    """The answer to the last attempt."""

    message: str = Field(default="", description="Higher, Lower or the result")
    attempts_left: int = Field(default=0, description="Attempts that remain")
