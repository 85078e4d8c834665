"""What goes over the wire: one action and one observation."""

from openenv.core.env_server.types import Action, Observation
from pydantic import Field


class SilverWordsAction(Action):
    """The sentence."""

    sentence: str = Field(description="One plain sentence that holds the words")


class SilverWordsObservation(Observation):
    """The words, and afterwards how many were used."""

    message: str = Field(default="", description="The words to use, or the result")
    words: list[str] = Field(default_factory=list, description="The words to use")
