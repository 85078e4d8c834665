"""What acts in an episode: a `Policy` begins a `Player` for each episode, and the player answers turn by turn."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from backend.domain.environments.manifest import Manifest
from backend.domain.environments.tools import Tool
from backend.domain.rollouts.rollout import TaskSpec
from workers.policies.adaptive_limit import Effort


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
    """What the policy may read of the conversation. The engine's own list: read it, do not keep or change it."""
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
    waiting: Callable[[], AbstractContextManager[Any]] = nullcontext
    """`with turn.waiting(): …` while no answer is worked on: the time of the episode stands still."""


@dataclass(slots=True)
class Reply:
    """One answer of the policy."""

    text: str
    tokens_in: int = 0
    tokens_out: int = 0
    is_truncated: bool = False
    """It was cut at the token limit."""
    reasoning: str = ""
    """What it thought, where that is told apart from the answer."""
    cached_in: int = 0
    """How many of `tokens_in` the endpoint had in its cache."""
    queue_seconds: float = 0.0
    """Waited for a place, and between tries."""


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


@dataclass(slots=True)
class TextTrace:
    """The tokens of all replies as text, for endpoints that tell log-probabilities but no ids."""

    texts: list[str]
    logprobs: list[float]
    turns: list[int]
    """Where each reply begins."""


class Player(Protocol):
    """A policy at one episode."""

    wants_scripts: bool
    """Ask the environment for its `scripts` before each turn."""

    async def act(self, turn: Turn) -> Reply: ...

    def trace(self) -> TokenTrace | TextTrace | None:
        """Called once, after the last turn."""

    def close(self) -> None: ...


class Policy(Protocol):
    """Anything that acts."""

    async def begin(self, start: EpisodeStart) -> Player: ...

    async def aclose(self) -> None: ...


@runtime_checkable
class Measured(Protocol):
    """A policy that finds out how much it bears: the engine begins no more episodes than its effort allows."""

    @property
    def effort(self) -> Effort: ...
