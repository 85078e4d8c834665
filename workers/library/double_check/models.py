"""What goes over the wire: one action and one observation."""

from openenv.core.env_server.types import Action, Observation
from pydantic import Field


class DoubleCheckAction(Action):
    """An answer: the first one, or what it is after the doubt."""

    answer: int = Field(
        description="A whole number",
        json_schema_extra={"minimum": 0, "maximum": 10000},
    )


class DoubleCheckObservation(Observation):
    """The question, and afterwards the doubt."""

    message: str = Field(default="", description="The question, or the challenge to the last answer")
    rounds_left: int = Field(default=0, description="Number of challenges left")
