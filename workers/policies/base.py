"""What acts in an episode: a `Policy` begins a `Player` for each episode, and the player answers turn by turn."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from backend.domain.manifest import Manifest
from backend.domain.rollouts import TaskSpec
from backend.domain.tools import Call, Tool


@dataclass(frozen=True, slots=True)
class EpisodeStart:
    """What is known before the first turn."""

    task: TaskSpec
    manifest: Manifest
    member: int
    """Ordinal inside the group."""
    seed: int
    """The policy's own randomness: the same for the same run seed, task and member."""


@dataclass(slots=True)
class Turn:
    """One question to the policy."""

    index: int
    """0 for the first."""
    messages: list[dict[str, Any]]
    """The conversation so far. The engine's own list: read it, do not keep or change it."""
    text: str
    """The newest observation as text: the last message's content."""
    observation: dict[str, Any]
    """The newest observation's fields, for scripts."""
    scripts: dict[str, str]
    """What scripted policies would reply next; filled only for players that want it."""
    action_schema: dict[str, Any]
    """JSON schema of the action."""
    max_tokens: int
    tools: Sequence[Tool] = ()
    """What may be called now, where replies are tool calls."""


@dataclass(slots=True)
class Reply:
    """One answer of the policy."""

    text: str
    tokens_in: int = 0
    tokens_out: int = 0
    is_truncated: bool = False
    """It was cut at the token limit."""
    not_made: list[Call] = field(default_factory=list)
    """Further calls that the policy asked for at once: one is made a turn."""


@dataclass(slots=True)
class TokenTrace:
    """All tokens of an episode, for policies that have them."""

    prompt: list[int]
    completion: list[int]
    """Everything after the first prompt, the environment's tokens included."""
    mask: list[int]
    """1 where the policy wrote the token, 0 where the environment did."""
    logprobs: list[float]
    """0.0 where the mask is 0."""


class Player(Protocol):
    """A policy at one episode."""

    wants_scripts: bool
    """Ask the environment for its `scripts` before each turn."""

    async def act(self, turn: Turn) -> Reply: ...

    def trace(self) -> TokenTrace | None:
        """Called once, after the last turn."""

    def close(self) -> None: ...


class Policy(Protocol):
    """Anything that acts."""

    async def begin(self, start: EpisodeStart) -> Player: ...

    async def aclose(self) -> None: ...
