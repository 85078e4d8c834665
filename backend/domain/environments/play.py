"""The state of a hand-played episode, stored in its run's `progress`."""

from dataclasses import dataclass, field
from enum import StrEnum

from backend.domain.text import JsonObject


class PlayPhase(StrEnum):
    OPENING = "opening"
    """The environment is being reset."""
    THINKING = "thinking"
    """The environment is responding."""
    YOURS = "yours"
    """It is the person's turn."""
    STUCK = "stuck"
    """The environment failed; the replies are kept and can be sent again."""
    OVER = "over"

    @property
    def is_waiting(self) -> bool:
        """A job is queued or running."""
        return self in {PlayPhase.OPENING, PlayPhase.THINKING}


@dataclass(frozen=True, slots=True)
class PlayState:
    """The person's request and its progress. The environment's responses are in the rollout."""

    phase: PlayPhase
    replies: list[str] = field(default_factory=list)
    """All replies of the episode; each job replays them from the start."""
    authors: list[str] = field(default_factory=list)
    """Who wrote each reply: a policy's name, empty for the person."""
    mover: JsonObject = field(default_factory=dict)
    """The policy that plays the next turns: {policy_id, checkpoint_id, name}; empty: none."""
    moves: int = 0
    """Maximum number of turns that it plays."""
    revision: int = 1
    """Number of requests, to detect stale pages."""
    asked_at: str = ""
    """Time of the last request, ISO 8601."""
    done: int = 0
    """Turns played."""
    total: int = 0
    """Maximum number of turns."""
    message: str = ""
    """Reason why it is stuck."""
    divergence: str = ""
    """Description of where the replay diverged: the environment is not deterministic."""

    def as_json(self) -> JsonObject:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, value: JsonObject) -> "PlayState":
        known = {name: value[name] for name in cls.__slots__ if name in value}
        return cls(**{**known, "phase": PlayPhase(known.get("phase", PlayPhase.OPENING))})
