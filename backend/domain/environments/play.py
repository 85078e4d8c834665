"""The state of a hand-played episode, stored in its run's `progress`."""

from dataclasses import dataclass, field
from enum import StrEnum

from backend.domain.text import JsonObject
from backend.domain.vocabulary import Queue


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
    seat: str = ""
    """The person's seat in an environment that has seats; empty: by the task."""
    opponent: JsonObject = field(default_factory=dict)
    """The policy that takes the other seats, like `mover`; empty: the manifest's script."""
    others: dict[str, list[JsonObject]] = field(default_factory=dict)
    """Replies of the other seats, which are replayed like the person's: fields of the reply, `after`, the number of
    replies on the person's seat before it, and `by`, the name of its policy."""
    is_assisted: bool = False
    """A reply is not the person's, was taken back or began in another episode: the episode is not a baseline."""
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

    @property
    def queue(self) -> Queue:
        """Where the next job runs: local models need the queue of models."""
        is_local = any(policy.get("queue") == Queue.GPU for policy in (self.mover, self.opponent))
        return Queue.GPU if is_local else Queue.CPU

    def as_json(self) -> JsonObject:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, value: JsonObject) -> "PlayState":
        known = {name: value[name] for name in cls.__slots__ if name in value}
        return cls(**{**known, "phase": PlayPhase(known.get("phase", PlayPhase.OPENING))})
