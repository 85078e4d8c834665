"""What crosses the wire."""

from typing import Any

from pydantic import Field

from .serving import Action, Observation


class Reply(Action):
    """One reply of the policy: a call of a tool, or text."""

    text: str = ""
    tool: str = ""
    arguments: dict[str, Any] = Field(default_factory=dict)


class Turn(Observation):
    """The library's messages to the policy before its next reply."""

    text: str = ""
    """The new messages as one text."""
    messages: list[dict[str, Any]] = Field(default_factory=list)
    """The same as the library has them."""
    tools: list[dict[str, Any]] = Field(default_factory=list)
    """What may be called now."""
