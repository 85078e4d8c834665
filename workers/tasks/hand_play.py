"""The job `environments.play`: replay all replies, let another policy play if requested, store the responses.

Trials of drafts play their episodes with `replay` too.
"""

import asyncio
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import asdict, dataclass, field, replace
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
from backend.domain.policies.prices import Price
from backend.domain.rollouts.rollout import Rollout, TaskSpec
from backend.domain.text import JsonObject, json_text
from backend.domain.vocabulary import Phase, RolloutStatus, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.errors import AppError
from backend.rollouts.tables import Group
from backend.rollouts.tables import Rollout as RolloutRow
from backend.runs.service import begin_run, finish_run
from backend.runs.tables import Run
from workers.policies.base import EpisodeStart, Player, Policy, Reply, Turn
from workers.policies.scripted import OutOfReplies, ScriptedPolicy
from workers.rollouts.seats import SeatAssignment, SeatPolicy, own_seat, play_episode
from workers.storage.env_host import serve
from workers.storage.policies import load_policy
from workers.storage.rollouts import EXCERPT_CHARACTERS, real
from workers.tasks.children import ChildFailed, must_run_child
from workers.tasks.execute import run_async
from workers.tasks.registry import JobContext

LOCAL_MODULE = "workers.models.play"
"""Plays with a local model in a separate process."""


@dataclass(frozen=True, slots=True)
class SeatReply:
    """A reply that another seat gave."""

    reply: Reply
    after: int
    """Number of replies on the scene's own seat before it."""
    by: str = ""
    """The policy that gave it; empty if it was taken from a stored rollout."""

    def as_json(self) -> JsonObject:
        return {**asdict(self.reply), "after": self.after, "by": self.by}

    @classmethod
    def from_json(cls, value: JsonObject) -> "SeatReply":
        reply = Reply(**{name: value[name] for name in Reply.__slots__ if name in value})
        return cls(reply, int(value["after"]), str(value.get("by", "")))


@dataclass(frozen=True, slots=True)
class Scene:
    """An episode to play."""

    task: TaskSpec
    content_hash: str
    files: dict[str, str]
    manifest: Manifest
    replies: list[str]
    seat: str = ""
    """The seat of the replies, if the environment has seats. Default: by the task."""
    others: Mapping[str, Sequence[SeatReply]] = field(default_factory=dict)
    """Replies of the other seats that are given again."""


@dataclass(slots=True)
class PlayedScene:
    """The episode as far as it was played."""

    rollout: Rollout
    others: dict[str, list[SeatReply]] = field(default_factory=dict)
    """Replies of the other seats, to be given again in a replay."""
    action_schema: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    """Why it ended, if the environment, its server or the policy failed."""


@dataclass
class _Seat(Player, Policy):
    """Gives the stored replies, then lets `mover` play at most `moves` turns. The caller closes `mover`."""

    replies: Sequence[Reply]
    mover: Policy | None
    moves: float = math.inf
    on_turn: Callable[[], object] | None = None
    on_reply: Callable[[Reply], object] | None = None
    """Gets each reply, stored ones included."""
    turns: int = 0
    """Turns taken."""
    _player: Player | None = None

    async def begin(self, start: EpisodeStart) -> Player:
        if self.mover is not None:
            self._player = await self.mover.begin(start)
        self.wants_scripts = not self.replies and getattr(self._player, "wants_scripts", False)
        return self

    async def act(self, turn: Turn) -> Reply:
        played = turn.index - len(self.replies)
        self.wants_scripts = played >= -1 and getattr(self._player, "wants_scripts", False)
        if played < 0:
            reply = replace(self.replies[turn.index])
        elif self._player is None or played >= self.moves:
            raise OutOfReplies
        else:
            if self.on_turn is not None and played > 0:
                await asyncio.to_thread(self.on_turn)
            reply = await self._player.act(turn)
        self.turns += 1
        if self.on_reply is not None:
            self.on_reply(replace(reply))
        return reply

    def close(self) -> None:
        if self._player is not None:
            self._player.close()


async def replay(
    scene: Scene,
    *,
    mover: Policy | None = None,
    moves: int = 0,
    opponent: SeatPolicy | None = None,
    on_turn: Callable[[PlayedScene], object] | None = None,
) -> PlayedScene:
    """Reset the environment and play the scene. `on_turn` gets the scene so far between two turns of `mover`.

    `opponent` takes the other seats, after their stored replies. Default: the manifest's script.
    """
    rollout = Rollout(task=scene.task, phase=Phase.PLAY, group=0, member=0, status=RolloutStatus.PLAYING)
    start = EpisodeStart(scene.task, scene.manifest, member=0, seed=scene.task.seed)
    played = PlayedScene(rollout)
    seat = _Seat([Reply(text) for text in scene.replies], mover, moves, partial(on_turn, played) if on_turn else None)

    def assign(rollout: Rollout) -> SeatAssignment:
        assert scene.manifest.proctor.seats is not None
        own, script = scene.seat or own_seat(scene.manifest, rollout), scene.manifest.proctor.seats.others
        taken = opponent or SeatPolicy(script, ScriptedPolicy(script))
        others = {}
        for name in scene.manifest.proctor.seats.names:
            if name == own:
                continue
            # replies after a turn that was taken back are not given again
            stored = [each for each in scene.others.get(name, ()) if each.after <= len(scene.replies)]
            while stored and stored[-1].by == taken.name and isinstance(taken.policy, ScriptedPolicy):
                stored.pop()  # a script plays the same again, and its random numbers continue

            kept: list[SeatReply] = []
            played.others[name] = kept

            def keep(reply: Reply, kept: list[SeatReply] = kept, stored: Sequence[SeatReply] = stored) -> None:
                by = stored[len(kept)].by if len(kept) < len(stored) else taken.name
                kept.append(SeatReply(reply, seat.turns, by))

            other = _Seat([each.reply for each in stored], taken.policy, on_reply=keep)
            others[name] = replace(taken, policy=other)
        return SeatAssignment(own, others)

    try:
        async with serve(scene.content_hash, scene.files, scene.manifest) as server, server.session() as session:
            played.action_schema = server.action_schema
            await play_episode(scene.manifest, server.action_schema, session, rollout, seat, start, assign)
    except OutOfReplies:
        pass
    except RolloutError as error:
        played.error = f"{error.kind}: {error}"
    return played


def run(context: JobContext) -> None:
    run_id = context.need_run()
    try:
        with transaction() as session:
            state = PlayState.from_json(session.get_one(Run, run_id).progress)
            policy = load_policy(session, state.mover) if state.mover else None
            opponent = load_policy(session, state.opponent) if state.opponent else None
        if (state.mover and policy is None) or (state.opponent and opponent is None):
            must_run_child(LOCAL_MODULE, [str(run_id)], run_id=run_id)
        else:
            play_on(run_id, policy, opponent)
    except (ChildFailed, AppError) as error:  # the played turns are kept
        with transaction() as session:
            row = session.get_one(Run, run_id, with_for_update=True)
            state = PlayState.from_json(row.progress)
            if state.phase.is_waiting and not row.status.is_over:
                row.progress = replace(state, phase=PlayPhase.STUCK, message=str(error)).as_json()
                announce(session, topic_of("run", row.id))


def play_on(run_id: uuid.UUID, policy: Policy | None, opponent: Policy | None = None) -> None:
    """Serve the person's request: replay the episode so far; `policy` plays the requested turns.

    `opponent` takes the other seats. Both are closed.
    """
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
        others = {seat: [SeatReply.from_json(each) for each in replies] for seat, replies in state.others.items()}
        scene = Scene(spec, version.content_hash, version.files, manifest, state.replies, state.seat, others)
        rival = None
        if opponent is not None:
            price = state.opponent.get("price")
            name = str(state.opponent.get("name", ""))
            rival = SeatPolicy(name, opponent, Price.model_validate(price) if price else None)

    def store_turns(played: PlayedScene) -> None:
        if not _store(run_id, state.revision, played, is_partial=True):  # the person took over or left
            raise OutOfReplies

    async def play() -> PlayedScene:
        async with aclosing(opponent) if opponent is not None else nullcontext():
            return await replay(scene, mover=policy, moves=state.moves, opponent=rival, on_turn=store_turns)

    _store(run_id, state.revision, run_async(play(), closing=policy))


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
        others = {seat: [each.as_json() for each in replies] for seat, replies in played.others.items()}
        authors = [*by_person, *by_policy][: len(steps)]
        state = replace(state, done=len(steps), authors=authors, others=_as_stored(others))
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
            summary: JsonObject = {"reward": stored.reward, "turns": stored.turns}
            if rollout.seats is not None:
                summary["score"] = rollout.seats.score
            finish_run(session, row, RunStatus.COMPLETED, summary)
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
