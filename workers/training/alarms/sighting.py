"""What an alarm's look gives back."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from backend.domain.training.alarms import AlarmsChoice
from workers.training.alarms.history import History


@dataclass(frozen=True, slots=True)
class Sighting:
    """A condition that holds now."""

    name: str
    sentence: str
    """What was seen, with numbers."""
    onset: int
    """The last step that was still sound, as far as can be told: roll back to before it."""
    evidence: dict[str, Any] = field(default_factory=dict)
    key: str = ""
    """What it is about, where one alarm may be about several things at once."""

    @property
    def condition(self) -> str:
        return f"{self.name}/{self.key}" if self.key else self.name


Look = Callable[[History, AlarmsChoice], list[Sighting]]
"""Which conditions hold after the newest step."""
