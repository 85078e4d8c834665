"""Play an episode from its start: the stored replies, then optionally a limited number of turns by a policy."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from backend.domain.environments.manifest import Manifest
from backend.domain.errors import RolloutError
from backend.domain.rollouts.rollout import Rollout, TaskSpec
from backend.domain.vocabulary import Phase, RolloutStatus
from workers.policies.base import EpisodeStart, Player, Policy, Reply, TokenTrace, Turn
from workers.policies.scripted import OutOfReplies, ReplayPlayer
from workers.rollouts.episode import Episode, Rules
from workers.storage.env_host import open_env_host

__all__ = ["OutOfReplies", "PlayedScene", "Scene", "Seat", "replay"]

OnTurn = Callable[[Rollout], None]


@dataclass(frozen=True, slots=True)
class Scene:
    """An episode to play."""

    task: TaskSpec
    content_hash: str
    files: dict[str, str]
    manifest: Manifest
    replies: list[str]


@dataclass(frozen=True, slots=True)
class PlayedScene:
    """The episode as far as it was played."""

    rollout: Rollout
    action_schema: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    """Why it ended, if the environment, its server or the policy failed."""


class Seat:
    """The policy of such an episode. `mover` plays at most `moves` turns after the replies."""

    def __init__(self, scene: Scene, mover: Policy | None, moves: int, on_turn: Callable[[], None] | None) -> None:
        self.wants_scripts = False
        self._replies = scene.replies
        self._replay = ReplayPlayer([Reply(text) for text in scene.replies])
        self._mover, self._moves, self._on_turn = mover, moves, on_turn
        self._player: Player | None = None

    async def begin(self, start: EpisodeStart) -> Player:
        if self._mover is not None:
            self._player = await self._mover.begin(start)
        self._await_turn(0)
        return self

    def _await_turn(self, index: int) -> None:
        self.wants_scripts = index >= len(self._replies) and self._player is not None and self._player.wants_scripts

    async def act(self, turn: Turn) -> Reply:
        self._await_turn(turn.index + 1)
        if turn.index < len(self._replies):
            return await self._replay.act(turn)
        if self._player is None or turn.index >= len(self._replies) + self._moves:
            raise OutOfReplies
        if self._on_turn is not None and turn.index > len(self._replies):
            await asyncio.to_thread(self._on_turn)
        return await self._player.act(turn)

    def trace(self) -> TokenTrace | None:
        return None

    def close(self) -> None:
        if self._player is not None:
            self._player.close()

    async def aclose(self) -> None:
        """The caller closes `mover`."""


async def replay(
    scene: Scene, *, mover: Policy | None = None, moves: int = 0, on_turn: OnTurn | None = None
) -> PlayedScene:
    """Reset the environment and play the scene. `on_turn` gets the rollout between two turns of `mover`."""
    rollout = Rollout(task=scene.task, phase=Phase.PLAY, group=0, member=0, status=RolloutStatus.PLAYING)
    start = EpisodeStart(scene.task, scene.manifest, member=0, seed=scene.task.seed)
    seat = Seat(scene, mover, moves, partial(on_turn, rollout) if on_turn else None)
    schema: dict[str, Any] = {}
    try:
        async with open_env_host() as host:
            await host.prepare(scene.content_hash, scene.files)
            async with host.lease(scene.content_hash, scene.manifest.proctor.resources) as server:
                schema = server.action_schema
                async with server.session() as session:
                    await Episode(Rules(scene.manifest, schema), session, rollout).play(seat, start)
    except OutOfReplies:
        return PlayedScene(rollout, schema)
    except RolloutError as error:
        return PlayedScene(rollout, schema, error=f"{error.kind}: {error}")
    return PlayedScene(rollout, schema)
