"""Read hand-played episodes, and the view of one that pages and JSON share."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, contains_eager, joinedload, undefer

from backend.domain.environments.manifest import ActionSpec, Manifest
from backend.domain.environments.play import PlayState
from backend.domain.ids import stable_id
from backend.domain.rollouts.rollout import TaskSpec, columns_over_episode, weighted_reward
from backend.domain.vocabulary import Phase, RolloutStatus, RunKind, RunStatus
from backend.environments.action_form import ActionChoice, ActionField, action_fields, legal_choices
from backend.environments.tables import Environment, EnvironmentVersion
from backend.errors import NotFound
from backend.policies.queries import PolicyOption, policy_options
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.tables import Run
from backend.web.transcripts import Entry, transcript_of

HUMAN = "human"
"""Name of the policy of all people."""


def get_play(session: Session, name: str, run_id: uuid.UUID) -> Run:
    """Return the play run with its version and environment. Raises NotFound."""
    statement = (
        select(Run)
        .join(Run.version)
        .join(EnvironmentVersion.environment)
        .options(
            contains_eager(Run.version).contains_eager(EnvironmentVersion.environment),
            joinedload(Run.creator),
        )
        .where(Run.id == run_id, Run.kind == RunKind.PLAY, Environment.name == name)
    )
    run = session.scalars(statement).one_or_none()
    if run is None:
        raise NotFound("There is no such episode of this environment.")
    return run


def plays_of(session: Session, environment: Environment, person_id: uuid.UUID, *, limit: int = 10) -> list[Run]:
    """List the person's episodes, newest first."""
    statement = (
        select(Run)
        .join(Run.version)
        .options(contains_eager(Run.version))
        .where(
            Run.kind == RunKind.PLAY,
            Run.created_by == person_id,
            EnvironmentVersion.environment_id == environment.id,
        )
        .order_by(Run.created_at.desc(), Run.id.desc())
        .limit(limit)
    )
    return list(session.scalars(statement))


def task_of_play(session: Session, run: Run) -> Task:
    return session.scalars(select(Task).join(Group, Group.task_id == Task.id).where(Group.run_id == run.id)).one()


def rollout_of_play(session: Session, run: Run) -> Rollout:
    """Return the rollout of a play run with its deferred columns."""
    options = (undefer(Rollout.opening), undefer(Rollout.steps), undefer(Rollout.messages))
    statement = select(Rollout).where(Rollout.run_id == run.id).options(*options)
    return session.scalars(statement.execution_options(populate_existing=True)).one()


def replies_of(session: Session, run: Run) -> list[str]:
    """Return the replies that the environment has answered."""
    return [str(step["reply"]) for step in rollout_of_play(session, run).steps]


def add_rollout(session: Session, run: Run, task: TaskSpec) -> None:
    """Create the run's group and rollout, which its job fills."""
    task_id = stable_id("task", run.version_id, task.split, task.index, task.seed)
    row = {"id": task_id, "version_id": run.version_id, "split": task.split, "index": task.index}
    row |= {"level": task.level, "seed": task.seed, "arguments": dict(task.arguments)}
    session.execute(insert(Task).values(row).on_conflict_do_nothing())
    group = Group(
        id=stable_id("group", run.id, Phase.PLAY, None, 0), run_id=run.id, task_id=task_id, phase=Phase.PLAY, ordinal=0
    )
    session.add(group)
    session.flush()
    session.add(
        Rollout(
            id=stable_id("rollout", group.id, 0),
            run_id=run.id,
            group_id=group.id,
            member=0,
            seq=1,
            phase=Phase.PLAY,
            level=task.level,
            status=RolloutStatus.PLAYING,
            started_at=datetime.now(UTC),
        )
    )
    session.flush()


@dataclass(frozen=True, slots=True)
class PlayView:
    """The current state of an episode."""

    run: Run
    environment: Environment
    version: EnvironmentVersion
    manifest: Manifest
    task: Task
    rollout: Rollout
    state: PlayState
    observation: Mapping[str, Any]
    """The latest one."""
    text: str
    """The observation as a model would read it; empty when the episode has ended."""
    entries: Sequence[Entry]
    """The conversation up to the latest reply."""
    columns: Mapping[str, float]
    """Reward columns so far; Proctor's own columns come at the end."""
    reward: float
    """So far."""
    fields: Sequence[ActionField]
    choices: Sequence[ActionChoice]
    pending: str | None
    """A reply that the environment has not answered."""
    policies: Sequence[PolicyOption]
    """Policies that can continue the episode."""

    @property
    def spec(self) -> ActionSpec:
        return self.manifest.proctor.agent.action

    @property
    def foreign_moves(self) -> Mapping[str, list[int]]:
        """Turns of each policy that played here, by its name, counted from 1."""
        found: dict[str, list[int]] = {}
        for turn, author in enumerate(self.state.authors, start=1):
            if author:
                found.setdefault(author, []).append(turn)
        return found

    @property
    def is_over(self) -> bool:
        return self.run.status in {RunStatus.COMPLETED, RunStatus.STOPPED}

    @property
    def is_failed(self) -> bool:
        """The worker gave up; the replies are kept."""
        return self.run.status is RunStatus.FAILED

    @property
    def is_waiting(self) -> bool:
        return self.state.phase.is_waiting and not self.is_over and not self.is_failed


def play_view(session: Session, name: str, run_id: uuid.UUID) -> PlayView:
    """Read an episode. Raises NotFound."""
    run = get_play(session, name, run_id)
    rollout = rollout_of_play(session, run)
    state = PlayState.from_json(run.progress)
    manifest = Manifest.model_validate(run.version.manifest)
    spec = manifest.proctor.agent.action
    taken = [step for step in rollout.steps if step["action"] is not None]  # others have no observation
    observation = taken[-1]["observation"] if taken else rollout.opening
    messages = list(rollout.messages)
    is_open = bool(messages) and messages[-1]["role"] == "user"
    text = str(messages.pop()["content"]) if is_open else ""
    if rollout.columns is not None:
        columns = dict(zip(run.columns, rollout.columns, strict=True))
    else:
        columns = columns_over_episode(manifest.columns, [step["rewards"] for step in rollout.steps])
    played = [step["reply"] for step in rollout.steps]
    return PlayView(
        run=run,
        environment=run.version.environment,
        version=run.version,
        manifest=manifest,
        task=task_of_play(session, run),
        rollout=rollout,
        state=state,
        observation=observation,
        text=text,
        entries=transcript_of(messages, rollout.steps, run.columns, weights=run.weights) if messages else [],
        columns=columns,
        reward=weighted_reward(manifest.columns, columns),
        fields=action_fields(spec, run.configuration.get("action_schema") or {}, {**rollout.opening, **observation}),
        choices=legal_choices(spec, observation),
        policies=policy_options(session, manifest) if run.status is RunStatus.RUNNING else (),
        pending=state.replies[-1] if len(state.replies) > len(played) else None,
    )
