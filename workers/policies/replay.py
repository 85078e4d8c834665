"""Replies that there are already, given again: for replays on another version, and for episodes that go on by hand."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from backend.domain.errors import PolicyError
from workers.policies.base import EpisodeStart, Player, Reply, TokenTrace, Turn


class OutOfReplies(PolicyError):
    """All replies are replayed; somebody else is next."""

    is_retryable = False


class ReplayPlayer:
    """Gives the replies in their order. Raises OutOfReplies when it is asked for another one."""

    wants_scripts = False

    def __init__(self, replies: Sequence[Reply]) -> None:
        self._replies = replies

    async def act(self, turn: Turn) -> Reply:
        if turn.index >= len(self._replies):
            raise OutOfReplies
        return replace(self._replies[turn.index])

    def trace(self) -> TokenTrace | None:
        return None

    def close(self) -> None:
        """Nothing to close."""


class ReplayPolicy:
    """`replies` says what is to be given again in an episode."""

    def __init__(self, replies: Callable[[EpisodeStart], Sequence[Reply]]) -> None:
        self._replies = replies

    async def begin(self, start: EpisodeStart) -> Player:
        return ReplayPlayer(self._replies(start))

    async def aclose(self) -> None:
        """Nothing to close."""
