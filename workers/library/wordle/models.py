"""What goes over the wire: one action and one observation."""

from openenv.core.env_server.types import Action, Observation
from pydantic import Field


class WordleAction(Action):
    """One guess."""

    guess: str = Field(
        description="Five letters",
        # Described, not enforced: anything else is a wasted attempt, not a broken message.
        json_schema_extra={"minLength": 5, "maxLength": 5},
    )


class WordleObservation(Observation):
    """The feedback on the last guess."""

    message: str = Field(default="", description="The colors of the last guess, or the result")
    shown: str = Field(default="", description="Letters that are shown from the start; _ is hidden")
    attempts_left: int = Field(default=0, description="Attempts that remain")
