"""The job `environments.play`: replay all replies, let another policy play if requested, store the responses.

Trials of drafts play their episodes with `replay` too.
"""

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import orjson
from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload, undefer

from backend.core.events import announce, topic_of
from backend.core.session import transaction
from backend.domain.environments.manifest import Manifest
from backend.domain.environments.play import PlayPhase, PlayState
from backend.domain.errors import RolloutError
from backend.domain.rollouts.rollout import Rollout, TaskSpec
from backend.domain.text import json_text
from backend.domain.vocabulary import Phase, RolloutStatus, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.errors import AppError
from backend.rollouts.tables import Group
from backend.rollouts.tables import Rollout as RolloutRow
from backend.runs.service import begin_run, finish_run
from backend.runs.tables import Run
from workers.policies.base import EpisodeStart, Player, Policy, Reply, Turn
from workers.policies.scripted import OutOfReplies
from workers.rollouts.seats import play_episode
from workers.storage.env_host import serve
from workers.storage.policies import load_policy
from workers.storage.rollouts import EXCERPT_CHARACTERS, real
from workers.tasks.children import ChildFailed, must_run_child
from workers.tasks.execute import run_async
from workers.tasks.registry import JobContext

LOCAL_MODULE = "workers.models.play"
"""Plays with a local model in a separate process."""


@dataclass(frozen=True, slots=True)
class Scene:
    """An episode to play."""

    task: TaskSpec
    content_hash: str
    files: dict[str, str]
    manifest: Manifest
    replies: list[str]


@dataclass(slots=True)
class PlayedScene:
    """The episode as far as it was played."""

    rollout: Rollout
    action_schema: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    """Why it ended, if the environment, its server or the policy failed."""


@dataclass
class _Seat(Player, Policy):
    """Gives the stored replies, then lets `mover` play at most `moves` turns. The caller closes `mover`."""

    _replies: Sequence[str]
    _mover: Policy | None
    _moves: int
    _on_turn: Callable[[], object] | None
    _player: Player | None = None

    async def begin(self, start: EpisodeStart) -> Player:
        if self._mover is not None:
            self._player = await self._mover.begin(start)
        self.wants_scripts = not self._replies and getattr(self._player, "wants_scripts", False)
        return self

    async def act(self, turn: Turn) -> Reply:
        played = turn.index - len(self._replies)
        self.wants_scripts = played >= -1 and getattr(self._player, "wants_scripts", False)
        if played < 0:
            return Reply(self._replies[turn.index])
        if self._player is None or played >= self._moves:
            raise OutOfReplies
        if self._on_turn is not None and played > 0:
            await asyncio.to_thread(self._on_turn)
        return await self._player.act(turn)

    def close(self) -> None:
        if self._player is not None:
            self._player.close()


async def replay(
    scene: Scene, *, mover: Policy | None = None, moves: int = 0, on_turn: Callable[[Rollout], object] | None = None
) -> PlayedScene:
    """Reset the environment and play the scene. `on_turn` gets the rollout between two turns of `mover`."""
    rollout = Rollout(task=scene.task, phase=Phase.PLAY, group=0, member=0, status=RolloutStatus.PLAYING)
    start = EpisodeStart(scene.task, scene.manifest, member=0, seed=scene.task.seed)
    seat = _Seat(scene.replies, mover, moves, partial(on_turn, rollout) if on_turn else None)
    played = PlayedScene(rollout)
    try:
        async with serve(scene.content_hash, scene.files, scene.manifest) as server, server.session() as session:
            played.action_schema = server.action_schema
            await play_episode(scene.manifest, server.action_schema, session, rollout, seat, start)
    except OutOfReplies:
        pass
    except RolloutError as error:
        played.error = f"{error.kind}: {error}"
    return played


def run(context: JobContext) -> None:
    run_id = context.need_run()
    try:
        with transaction() as session:
            option = PlayState.from_json(session.get_one(Run, run_id).progress).mover
            policy = load_policy(session, option) if option else None
        if option and policy is None:
            must_run_child(LOCAL_MODULE, [str(run_id)], run_id=run_id)
        else:
            play_on(run_id, policy)
    except (ChildFailed, AppError) as error:  # the played turns are kept
        with transaction() as session:
            row = session.get_one(Run, run_id, with_for_update=True)
            state = PlayState.from_json(row.progress)
            if state.phase.is_waiting and not row.status.is_over:
                row.progress = replace(state, phase=PlayPhase.STUCK, message=str(error)).as_json()
                announce(session, topic_of("run", row.id))


def play_on(run_id: uuid.UUID, policy: Policy | None) -> None:
    """Serve the person's request: replay the episode so far; `policy` plays the requested turns and is closed."""
    with transaction() as session:
        row = session.get_one(Run, run_id)
        state, stored = PlayState.from_json(row.progress), _rollout_row(session, run_id)
        if row.status is RunStatus.QUEUED and stored.status is RolloutStatus.CANCELLED:  # continue an abandoned episode
            stored.status, stored.stop_reason, stored.ended_at = RolloutStatus.PLAYING, None, None
            state = replace(state, phase=PlayPhase.THINKING)
            row.progress = state.as_json()
        if not state.phase.is_waiting or (row.status is not RunStatus.RUNNING and not begin_run(session, row)):
            return  # the person left, or the job was done before
        version = session.get_one(EnvironmentVersion, row.version_id, options=[undefer(EnvironmentVersion.files)])
        task = stored.group.task
        spec = TaskSpec(task.split, task.index, task.level, task.seed, task.arguments)
        manifest = Manifest.model_validate(version.manifest)
        scene = Scene(spec, version.content_hash, version.files, manifest, state.replies)

    def store_turns(rollout: Rollout) -> None:
        if not _store(run_id, state.revision, PlayedScene(rollout), is_partial=True):  # the person took over or left
            raise OutOfReplies

    replayed = replay(scene, mover=policy, moves=state.moves, on_turn=store_turns)
    _store(run_id, state.revision, run_async(replayed, closing=policy))


def _store(run_id: uuid.UUID, revision: int, played: PlayedScene, *, is_partial: bool = False) -> bool:
    """Store the responses; False if the person left or sent another request."""
    with transaction() as session:
        row = session.get_one(Run, run_id, with_for_update=True)
        state = PlayState.from_json(row.progress)
        if row.status.is_over or state.revision != revision:
            return False
        announce(session, topic_of("run", row.id))
        if played.error:
            row.progress = replace(state, phase=PlayPhase.STUCK, message=played.error).as_json()
            return True
        rollout, stored = played.rollout, _rollout_row(session, row.id)
        before = stored.opening, stored.steps
        steps: list[dict[str, Any]] = _as_stored(rollout.steps)
        by_person = [*state.authors, *[""] * len(state.replies)][: len(state.replies)]
        by_policy = [str(state.mover.get("name", ""))] * (len(steps) - len(state.replies))
        state = replace(state, done=len(steps), authors=[*by_person, *by_policy][: len(steps)])
        stored.opening, stored.steps = _as_stored(rollout.opening), steps
        stored.messages = _as_stored(rollout.messages)
        stored.turns = len(steps)
        stored.seat = rollout.seats.seat if rollout.seats else None
        stored.seats = _as_stored(rollout.seats)
        stored.excerpt = steps[-1]["reply"][-EXCERPT_CHARACTERS:] if steps else ""
        stored.environment_seconds = rollout.environment_seconds
        row.progress = state.as_json()
        if is_partial:
            return True
        is_over = rollout.status is RolloutStatus.COMPLETED
        row.progress = replace(
            state,
            phase=PlayPhase.OVER if is_over else PlayPhase.YOURS,
            replies=[step["reply"] for step in steps],
            mover={},
            moves=0,
            divergence=divergence(*before, stored.opening, steps),
        ).as_json()
        row.configuration = {**row.configuration, "action_schema": _as_stored(played.action_schema)}
        if is_over:
            stored.status, stored.stop_reason = rollout.status, rollout.stop_reason
            stored.reward = real(rollout.reward)
            stored.columns = [real(rollout.columns.get(name, 0.0)) or 0.0 for name in row.columns]
            stored.metrics = _as_stored(rollout.metrics)
            stored.ended_at = datetime.now(UTC)
            session.flush()
            finish_run(session, row, RunStatus.COMPLETED, {"reward": stored.reward, "turns": stored.turns})
    return True


def divergence(
    opening: Mapping[str, object],
    steps: Sequence[Mapping[str, object]],
    new_opening: Mapping[str, object],
    new_steps: Sequence[Mapping[str, object]],
) -> str:
    """Describe where a replay diverged from the stored responses; empty if it did not."""
    if opening and opening != new_opening:
        return "The environment opened differently than before."
    for number, (before, after) in enumerate(zip(steps, new_steps, strict=False), start=1):
        if before["reply"] != after["reply"]:
            break
        changed = [name for name in ("observation", "rewards", "done") if before[name] != after[name]]
        if changed:
            return f"Turn {number} was answered differently than before ({', '.join(changed)})."
    return ""


def _rollout_row(session: Session, run_id: uuid.UUID) -> RolloutRow:
    statement = (
        select(RolloutRow)
        .where(RolloutRow.run_id == run_id)
        .options(undefer(RolloutRow.opening), undefer(RolloutRow.steps), undefer(RolloutRow.messages))
        .options(joinedload(RolloutRow.group).joinedload(Group.task))
    )
    return session.scalars(statement).one()


def _as_stored(value: object) -> Any:
    """Return the value as the database returns it, so that old and new ones can be compared."""
    return orjson.loads(json_text(value))
