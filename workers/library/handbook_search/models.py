"""What goes over the wire: one action and one observation."""

from typing import Any

from openenv.core.env_server.types import Action, Observation
from pydantic import Field


class HandbookSearchAction(Action):
    """One call."""

    tool: str = Field(description="search, read or answer")
    arguments: dict[str, Any] = Field(default_factory=dict, description="Arguments of the tool")


class HandbookSearchObservation(Observation):
    """The question at the start, then the result of the last call."""

    message: str = Field(default="", description="The question, or what the last call found")
