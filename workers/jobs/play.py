"""Hand play: reset the environment, replay all that the person replied, store what it answered."""

import uuid
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import orjson
from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload, undefer

from backend.db.models import EnvironmentVersion, Group, Run
from backend.db.models import Rollout as RolloutRow
from backend.db.session import transaction
from backend.domain.errors import PolicyError, RolloutError
from backend.domain.manifest import Manifest
from backend.domain.play import PlayPhase, PlayState
from backend.domain.rollouts import Rollout, TaskSpec
from backend.domain.vocabulary import Phase, RolloutStatus, RunStatus
from backend.evaluations.service import begin_run, finish_run
from backend.events import announce, run_topic
from backend.settings import get_settings
from workers.environments.client import EnvHost
from workers.jobs.loops import run_async
from workers.jobs.registry import JobContext
from workers.jobs.rollout_rows import EXCERPT_CHARACTERS, json_text, real
from workers.policies.base import EpisodeStart, Reply, TokenTrace, Turn
from workers.rollouts.episode import Episode, Rules


class OutOfReplies(PolicyError):
    """All replies are replayed; the person is next."""


class Replay:
    """The policy of a person: what they replied so far, then nothing."""

    wants_scripts = False

    def __init__(self, replies: list[str]) -> None:
        self._replies = replies

    async def begin(self, start: EpisodeStart) -> "Replay":
        return self

    async def act(self, turn: Turn) -> Reply:
        if turn.index >= len(self._replies):
            raise OutOfReplies
        return Reply(self._replies[turn.index])

    def trace(self) -> TokenTrace | None:
        return None

    def close(self) -> None: ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be played, read before the environment is asked."""

    run_id: uuid.UUID
    state: PlayState
    task: TaskSpec
    content_hash: str
    files: dict[str, str]
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Played:
    """What the environment answered."""

    rollout: Rollout
    action_schema: dict[str, Any]
    error: str = ""
    """Why it went no further, when the environment or its server failed."""


def run(context: JobContext) -> None:
    """The job `environments.play`."""
    work = _read(context.need_run())
    if work is not None:
        _store(work, run_async(_play(work)))


def _read(run_id: uuid.UUID) -> Work | None:
    """None when the person left or the job was done before."""
    with transaction() as session:
        row = session.get_one(Run, run_id)
        state = _resumed(session, row) or PlayState.from_json(row.progress)
        if not state.phase.is_waiting or (row.status is not RunStatus.RUNNING and not begin_run(session, row)):
            return None
        version = session.get_one(EnvironmentVersion, row.version_id, options=[undefer(EnvironmentVersion.files)])
        task = _rollout_row(session, run_id).group.task
        return Work(
            run_id=run_id,
            state=state,
            task=TaskSpec(task.split, task.index, task.level, task.seed, task.arguments),
            content_hash=version.content_hash,
            files=version.files,
            manifest=Manifest.model_validate(version.manifest),
        )


def _resumed(session: Session, row: Run) -> PlayState | None:
    """A person who left an episode came back to it: it goes on where they left it."""
    stored = _rollout_row(session, row.id)
    if row.status is not RunStatus.QUEUED or stored.status is not RolloutStatus.CANCELLED:
        return None
    stored.status, stored.stop_reason, stored.ended_at = RolloutStatus.PLAYING, None, None
    state = replace(PlayState.from_json(row.progress), phase=PlayPhase.THINKING)
    row.progress = state.as_json()
    return state


async def _play(work: Work) -> Played:
    settings = get_settings()
    rollout = Rollout(task=work.task, phase=Phase.PLAY, group=0, member=0, status=RolloutStatus.PLAYING)
    start = EpisodeStart(work.task, work.manifest, member=0, seed=work.task.seed)
    schema: dict[str, Any] = {}
    try:
        async with EnvHost(settings.envhost_address, settings.envhost_token.get_secret_value()) as host:
            await host.prepare(work.content_hash, work.files)
            async with host.lease(work.content_hash, work.manifest.proctor.resources) as server:
                schema = server.action_schema
                async with server.session() as session:
                    episode = Episode(Rules(work.manifest, schema), session, rollout)
                    await episode.play(Replay(work.state.replies), start)
    except OutOfReplies:
        return Played(rollout, schema)
    except RolloutError as error:
        return Played(rollout, schema, error=f"{error.kind}: {error}")
    return Played(rollout, schema)


def _store(work: Work, played: Played) -> None:
    with transaction() as session:
        row = session.get_one(Run, work.run_id, with_for_update=True)
        state = PlayState.from_json(row.progress)
        if row.status.is_over or state.revision != work.state.revision:
            return  # left, or asked for something else, while the environment answered
        if played.error:
            row.progress = replace(state, phase=PlayPhase.STUCK, message=played.error).as_json()
        else:
            _keep(session, row, state, played)
        announce(session, run_topic(row.id))


def _keep(session: Session, row: Run, state: PlayState, played: Played) -> None:
    """Write down what the environment answered, and say so when it is not what it answered before."""
    rollout, stored = played.rollout, _rollout_row(session, row.id)
    opening, steps = _as_stored(rollout.opening), _as_stored(rollout.steps)
    is_over = rollout.status is RolloutStatus.COMPLETED
    row.progress = replace(
        state,
        phase=PlayPhase.OVER if is_over else PlayPhase.YOURS,
        replies=[step["reply"] for step in steps],
        done=len(steps),
        divergence=divergence(stored.opening, stored.steps, opening, steps),
    ).as_json()
    row.configuration = {**row.configuration, "action_schema": _as_stored(played.action_schema)}
    stored.opening, stored.steps, stored.messages = opening, steps, _as_stored(rollout.messages)
    stored.turns = len(steps)
    stored.excerpt = steps[-1]["reply"][-EXCERPT_CHARACTERS:] if steps else ""
    stored.environment_seconds = rollout.environment_seconds
    if is_over:
        _finish(session, row, stored, rollout)


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
    """Where a replay answered differently from what was stored, in words; empty where it did not."""
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
