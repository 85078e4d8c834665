"""What goes over the wire: one action and one observation."""

from openenv.core.env_server.types import Action, Observation
from pydantic import Field

try:
    from .words import ACTIONS, CATEGORIES, PRIORITIES
except ImportError:  # used from inside the package's folder
    from words import ACTIONS, CATEGORIES, PRIORITIES


class SupportTriageAction(Action):
    """The decision. Values that do not exist are wrong decisions, not broken messages."""

    category: str = Field(description="What the message is about", json_schema_extra={"enum": list(CATEGORIES)})
    action: str = Field(description="What is done", json_schema_extra={"enum": list(ACTIONS)})
    priority: str = Field(description="How soon", json_schema_extra={"enum": list(PRIORITIES)})
    order: str = Field(default="", description="Number of the order that it is about; empty when it names none")


class SupportTriageObservation(Observation):
    """The message, and afterwards how good the decision was."""

    message: str = Field(default="", description="The customer's message, with the dates of the last purchase")
    result: str = Field(default="", description="How good the decision was, once there is one")
