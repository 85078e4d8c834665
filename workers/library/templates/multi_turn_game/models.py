"""What goes over the wire: one action and one observation."""

from openenv.core.env_server.types import Action, Observation
from pydantic import Field


class __CLASS__Action(Action):
    """The policy's action in one turn."""

    deed: str = Field(
        description="left, right or dig",
        # Described, not enforced: an unknown deed is a bad move of the policy, not a broken message.
        json_schema_extra={"enum": ["left", "right", "dig"]},
    )


class __CLASS__Observation(Observation):
    """The policy's view of the task. Never put the answer here."""

    message: str = Field(default="", description="What happened")
    place: int = Field(default=0, description="Number of the policy's current field")
    legal_deeds: list[str] = Field(default_factory=list, description="What may be done now")
