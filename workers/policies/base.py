"""Interface of policies: a `Policy` begins a `Player` for each episode, and the player replies turn by turn."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from backend.domain.environments.manifest import Manifest
from backend.domain.environments.tools import Tool
from backend.domain.rollouts.rollout import TaskSpec
from workers.policies.throttle import AdaptiveLimit


@dataclass(frozen=True, slots=True)
class EpisodeStart:
    """A policy's knowledge before the first turn."""

    task: TaskSpec
    manifest: Manifest
    member: int
    """Ordinal inside the group."""
    seed: int
    """Seed of the policy's sampling: the same for the same run seed, task and member."""


@dataclass(slots=True)
class Turn:
    """A request for the policy's next reply."""

    index: int
    """0 for the first."""
    messages: list[dict[str, Any]]
    """The visible conversation. This is the engine's own list: read it, do not keep or change it."""
    text: str
    """The latest observation as text: the last message's content."""
    observation: dict[str, Any]
    """The latest observation's fields, for scripted policies."""
    scripts: dict[str, str]
    """Next reply of each of the environment's scripts; filled only for players that want it."""
    action_schema: dict[str, Any]
    """JSON schema of the action."""
    max_tokens: int
    tools: Sequence[Tool] = ()
    """Tools that can be called now, if replies are tool calls."""
    waiting: Callable[[], AbstractContextManager[object]] = nullcontext
    """`with turn.waiting(): …` pauses the episode's deadline while the request is queued."""


@dataclass(slots=True)
class Reply:
    """A reply of the policy."""

    text: str
    tokens_in: int = 0
    tokens_out: int = 0
    is_truncated: bool = False
    """It was cut at the token limit."""
    reasoning: str = ""
    """Reasoning, if the policy returns it separately."""
    cached_in: int = 0
    """How many of `tokens_in` came from the endpoint's cache."""
    queue_seconds: float = 0.0
    """Time spent waiting for a slot and between attempts."""


@dataclass(slots=True)
class TokenTrace:
    """All tokens of an episode, for policies that have them."""

    prompt: list[int]
    completion: list[int]
    """Everything after the first prompt, including the environment's tokens."""
    mask: list[int]
    """1 for tokens that the policy wrote, 0 for the environment's."""
    logprobs: list[float]
    """0.0 where the mask is 0."""


@dataclass(slots=True)
class TextTrace:
    """The tokens of all replies as text, for endpoints that return log-probabilities but no ids."""

    texts: list[str]
    logprobs: list[float]
    turns: list[int]
    """Index of each reply's first token."""


class Player(Protocol):
    """A policy in one episode."""

    wants_scripts: bool = False
    """Read the environment's `scripts` before each turn."""

    async def act(self, turn: Turn) -> Reply: ...

    def trace(self) -> TokenTrace | TextTrace | None:
        """Return the tokens. Called once, after the last turn."""
        return None

    def close(self) -> None:
        return None


class Policy(Protocol):
    """Anything that acts in episodes."""

    async def begin(self, start: EpisodeStart) -> Player: ...

    async def aclose(self) -> None:
        return None


@runtime_checkable
class AdaptivePolicy(Protocol):
    """A policy that finds out how many concurrent requests it can take. It limits the number of episodes."""

    @property
    def adaptive_limit(self) -> AdaptiveLimit: ...
