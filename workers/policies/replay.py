"""Stored replies, given again: for replays on another version, and to continue an episode by hand."""

from collections.abc import Sequence
from dataclasses import replace

from backend.domain.errors import PolicyError
from workers.policies.base import EpisodeStart, Player, Policy, Reply, Turn


class OutOfReplies(PolicyError):
    """All stored replies were used."""

    is_retryable = False


class ReplayPlayer(Player):
    """Gives the replies in their order, then raises OutOfReplies."""

    def __init__(self, replies: Sequence[Reply]) -> None:
        self._replies = replies

    async def act(self, turn: Turn) -> Reply:
        if turn.index >= len(self._replies):
            raise OutOfReplies
        return replace(self._replies[turn.index])


class ReplayPolicy(Policy):
    """Gives each member of a group its replies."""

    def __init__(self, replies: Sequence[Sequence[Reply]]) -> None:
        self._replies = replies

    async def begin(self, start: EpisodeStart) -> Player:
        return ReplayPlayer(self._replies[start.member])
