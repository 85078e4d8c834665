"""Interface of policies: a `Policy` begins a `Player` for each episode, and the player replies turn by turn."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from backend.domain.environments.manifest import Manifest
from backend.domain.environments.tools import Tool
from backend.domain.rollouts.rollout import TaskSpec


@dataclass(frozen=True, slots=True)
class EpisodeStart:
    """A policy's knowledge before the first turn."""

    task: TaskSpec
    manifest: Manifest
    member: int  # ordinal inside the group
    seed: int  # of the policy's sampling: the same for the same run seed, task and member
    seat: str = ""  # in an environment that has seats


@dataclass(slots=True)
class Turn:
    """A request for the policy's next reply."""

    index: int  # 0 for the first
    messages: list[dict[str, Any]]
    """The visible conversation. This is the engine's own list: read it, do not keep or change it."""
    text: str  # the latest observation as text: the last message's content
    observation: dict[str, Any]  # the latest observation's fields, for scripted policies
    scripts: dict[str, str]  # next reply of each of the environment's scripts; filled only for players that want it
    action_schema: dict[str, Any]  # JSON schema of the action
    max_tokens: int
    tools: Sequence[Tool] = ()  # tools that can be called now, if replies are tool calls
    waiting: Callable[[], AbstractContextManager[object]] = nullcontext
    """`with turn.waiting(): …` pauses the episode's deadline while the request is queued."""


@dataclass(slots=True)
class Reply:
    """A reply of the policy."""

    text: str
    tokens_in: int = 0
    tokens_out: int = 0
    is_truncated: bool = False  # it was cut at the token limit
    is_context_full: bool = False  # the context of the model ended it, or left no room for any reply
    reasoning: str = ""  # if the policy returns it separately
    cached_in: int = 0  # how many of `tokens_in` came from the endpoint's cache
    queue_seconds: float = 0.0  # time spent waiting for a slot and between attempts

    @property
    def is_missing(self) -> bool:
        """The context had no room for it: the policy wrote nothing."""
        return self.is_context_full and not self.text and not self.tokens_out


@dataclass(slots=True)
class TokenTrace:
    """All tokens of an episode, for policies that have them."""

    prompt: list[int] = field(default_factory=list)
    completion: list[int] = field(default_factory=list)
    """Everything after the first prompt, including the environment's tokens."""
    mask: list[int] = field(default_factory=list)  # 1 for tokens that the policy wrote, 0 for the environment's
    logprobs: list[float] = field(default_factory=list)  # 0.0 where the mask is 0

    def append(self, tokens: Sequence[int], logprobs: Sequence[float] | None = None) -> None:
        """Append tokens that the policy wrote with these log-probabilities. None: it did not write them."""
        self.completion += tokens
        self.mask += [int(logprobs is not None)] * len(tokens)
        self.logprobs += [0.0] * len(tokens) if logprobs is None else logprobs


@dataclass(slots=True)
class TextTrace:
    """The tokens of all replies as text, for endpoints that return log-probabilities but no ids."""

    texts: list[str] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)  # index of each reply's first token


class Player(Protocol):
    """A policy in one episode."""

    wants_scripts: bool = False  # read the environment's `scripts` before each turn

    async def act(self, turn: Turn) -> Reply: ...

    def trace(self) -> TokenTrace | TextTrace | None:
        """Return the tokens. Called once, after the last turn."""
        return None

    def close(self) -> None:
        return None


class Policy(Protocol):
    """Anything that acts in episodes. One that finds out how many concurrent requests it can take has an attribute
    `adaptive_limit`, which limits the number of episodes."""

    async def begin(self, start: EpisodeStart) -> Player: ...

    async def aclose(self) -> None:
        return None
