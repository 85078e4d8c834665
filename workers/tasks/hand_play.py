"""Hand play: replay all replies, let another policy play if requested, store the answers."""

import asyncio
import uuid
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import orjson
from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload, undefer

from backend.core.events import announce, run_topic
from backend.core.session import transaction
from backend.domain.environments.manifest import Manifest
from backend.domain.environments.play import PlayPhase, PlayState
from backend.domain.rollouts.rollout import Rollout, TaskSpec
from backend.domain.text import json_text
from backend.domain.vocabulary import RolloutStatus, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.errors import AppError
from backend.rollouts.tables import Group
from backend.rollouts.tables import Rollout as RolloutRow
from backend.runs.service import begin_run, finish_run
from backend.runs.tables import Run
from workers.policies.base import Policy
from workers.storage.episodes import OutOfReplies, Played, Scene, replay
from workers.storage.policies import load_policy
from workers.storage.rollouts import EXCERPT_CHARACTERS, real
from workers.tasks.children import ChildFailed, must_run_child
from workers.tasks.event_loops import run_async
from workers.tasks.registry import JobContext

LOCAL_MODULE = "workers.models.play"
"""Plays with a local model in a separate process."""


@dataclass(frozen=True, slots=True)
class Work:
    """The person's request."""

    run_id: uuid.UUID
    state: PlayState
    scene: Scene


def run(context: JobContext) -> None:
    """The job `environments.play`."""
    run_id = context.need_run()
    try:
        is_local, policy = _mover(run_id)
        if is_local:
            must_run_child(LOCAL_MODULE, [str(run_id)], run_id=run_id)
        else:
            play_on(run_id, policy)
    except (ChildFailed, AppError) as error:
        _get_stuck(run_id, str(error))


def play_on(run_id: uuid.UUID, policy: Policy | None) -> None:
    """Carry out the person's request; `policy` plays its turns and is closed."""
    work = _read(run_id)
    if work is not None:
        run_async(_play(work, policy))


def _mover(run_id: uuid.UUID) -> tuple[bool, Policy | None]:
    """(it needs a process with torch, the policy that is to play on)"""
    with transaction() as session:
        asked = PlayState.from_json(session.get_one(Run, run_id).progress).mover
        if not asked:
            return False, None
        policy = load_policy(session, asked)
        return policy is None, policy


def _read(run_id: uuid.UUID) -> Work | None:
    """None when the person left or the job was done before."""
    with transaction() as session:
        row = session.get_one(Run, run_id)
        state = _resumed(session, row) or PlayState.from_json(row.progress)
        if not state.phase.is_waiting or (row.status is not RunStatus.RUNNING and not begin_run(session, row)):
            return None
        version = session.get_one(EnvironmentVersion, row.version_id, options=[undefer(EnvironmentVersion.files)])
        task = _rollout_row(session, run_id).group.task
        spec = TaskSpec(task.split, task.index, task.level, task.seed, task.arguments)
        manifest = Manifest.model_validate(version.manifest)
        return Work(run_id, state, Scene(spec, version.content_hash, version.files, manifest, state.replies))


def _resumed(session: Session, row: Run) -> PlayState | None:
    """Continue an episode that a person had left."""
    stored = _rollout_row(session, row.id)
    if row.status is not RunStatus.QUEUED or stored.status is not RolloutStatus.CANCELLED:
        return None
    stored.status, stored.stop_reason, stored.ended_at = RolloutStatus.PLAYING, None, None
    state = replace(PlayState.from_json(row.progress), phase=PlayPhase.THINKING)
    row.progress = state.as_json()
    return state


async def _play(work: Work, policy: Policy | None) -> None:
    try:
        played = await replay(
            work.scene,
            mover=policy,
            moves=work.state.moves,
            on_turn=partial(_show, work),
        )
    finally:
        if policy is not None:
            await policy.aclose()
    await asyncio.to_thread(_store, work, played)


def _show(work: Work, rollout: Rollout) -> None:
    """Store the policy's turns so far. Stops if the person took over or left."""
    if not _store(work, Played(rollout), is_partial=True):
        raise OutOfReplies


def _store(work: Work, played: Played, *, is_partial: bool = False) -> bool:
    """False if no one waits for it anymore: the person left or sent another request."""
    with transaction() as session:
        row = session.get_one(Run, work.run_id, with_for_update=True)
        state = PlayState.from_json(row.progress)
        if row.status.is_over or state.revision != work.state.revision:
            return False
        if played.error:
            row.progress = replace(state, phase=PlayPhase.STUCK, message=played.error).as_json()
        elif is_partial:
            _keep_steps(session, row, state, played)
        else:
            _keep(session, row, state, played)
        announce(session, run_topic(row.id))
    return True


def _get_stuck(run_id: uuid.UUID, message: str) -> None:
    """The policy cannot be called; the played turns are kept."""
    with transaction() as session:
        row = session.get_one(Run, run_id, with_for_update=True)
        state = PlayState.from_json(row.progress)
        if state.phase.is_waiting and not row.status.is_over:
            row.progress = replace(state, phase=PlayPhase.STUCK, message=message).as_json()
            announce(session, run_topic(row.id))


def _keep(session: Session, row: Run, state: PlayState, played: Played) -> None:
    """Write down what the environment answered, and say so when it is not what it answered before."""
    rollout, stored = played.rollout, _rollout_row(session, row.id)
    before = stored.opening, stored.steps
    steps = _keep_steps(session, row, state, played)
    is_over = rollout.status is RolloutStatus.COMPLETED
    row.progress = replace(
        PlayState.from_json(row.progress),
        phase=PlayPhase.OVER if is_over else PlayPhase.YOURS,
        replies=[step["reply"] for step in steps],
        mover={},
        moves=0,
        divergence=divergence(*before, stored.opening, steps),
    ).as_json()
    row.configuration = {**row.configuration, "action_schema": _as_stored(played.action_schema)}
    if is_over:
        _finish(session, row, stored, rollout)


def _keep_steps(session: Session, row: Run, state: PlayState, played: Played) -> list[dict[str, Any]]:
    """The transcript so far, and who wrote which reply of it."""
    rollout, stored = played.rollout, _rollout_row(session, row.id)
    steps: list[dict[str, Any]] = _as_stored(rollout.steps)
    by_mover = [str(state.mover.get("name", ""))] * (len(steps) - len(state.replies))
    authors = [*state.authors, *[""] * len(state.replies)][: len(state.replies)]
    row.progress = replace(state, done=len(steps), authors=[*authors, *by_mover][: len(steps)]).as_json()
    stored.opening, stored.steps = _as_stored(rollout.opening), steps
    stored.messages = _as_stored(rollout.messages)
    stored.turns = len(steps)
    stored.excerpt = steps[-1]["reply"][-EXCERPT_CHARACTERS:] if steps else ""
    stored.environment_seconds = rollout.environment_seconds
    return steps


def _finish(session: Session, row: Run, stored: RolloutRow, rollout: Rollout) -> None:
    stored.status, stored.stop_reason = rollout.status, rollout.stop_reason
    stored.reward = real(rollout.reward)
    stored.columns = [real(rollout.columns.get(name, 0.0)) or 0.0 for name in row.columns]
    stored.metrics = _as_stored(rollout.metrics)
    stored.ended_at = datetime.now(UTC)
    session.flush()
    finish_run(session, row, RunStatus.COMPLETED, {"reward": stored.reward, "turns": stored.turns})


def divergence(
    opening: dict[str, Any], steps: list[dict[str, Any]], new_opening: dict[str, Any], new_steps: list[dict[str, Any]]
) -> str:
    """Describe where a replay diverged from the stored answers; empty if it did not."""
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


def _as_stored(value: Any) -> Any:
    """The value as it comes back from the database, so that old and new can be compared."""
    return orjson.loads(json_text(value))
