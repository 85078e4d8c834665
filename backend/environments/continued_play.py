"""What hand play leads to: another policy plays on, an episode is branched, kept as a fixture, or learned from."""

import uuid
from dataclasses import replace

from sqlalchemy import select
from sqlalchemy.orm import Session, contains_eager, joinedload, undefer

from backend.domain.environments.fixtures import Fixture, FixtureKind, FixtureTask, fixture_path, write_fixture
from backend.domain.environments.manifest import Manifest
from backend.domain.rollouts.rollout import TaskSpec, columns_over_episode, task_of
from backend.domain.vocabulary import PolicyKind, RolloutStatus, Split
from backend.environments.drafts import locked_draft, write_draft
from backend.environments.play import ask, start_play, state_in_hand
from backend.environments.play_rows import replies_of
from backend.environments.tables import Environment, EnvironmentVersion
from backend.errors import Conflict, InvalidInput, NotFound
from backend.policies.options import chosen_mover
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.tables import Run
from backend.web.audit import audit
from backend.web.identity import Actor

UNSAVED_COLUMNS = frozenset({"length"})
"""Columns that depend on a policy's tokenizer: a fixture cannot hold them."""


class EpisodeIsNotOver(Conflict):
    """Only an episode that was played to its end can be kept."""


class TaskIsHeldOut(Conflict):
    """This task is held out: what is learned from it could no longer be examined on it. Play a training task."""


def let_play(session: Session, actor: Actor, run: Run, key: str, *, moves: int | None, revision: int | None) -> None:
    """The policy plays the next `moves` turns, or to the end; the person may go on by hand after them."""
    state = state_in_hand(session, actor, run, revision)
    mover = chosen_mover(session, key)
    wanted = state.total if moves is None else max(1, min(moves, state.total))
    replies = replies_of(session, run)
    audit(session, actor, "play.let_play", "run", run.id, policy=mover["name"], moves=wanted)
    authors = state.authors[: len(replies)]
    run.configuration = {**run.configuration, "mover": key}  # chosen again on the page
    ask(session, run, replace(state, replies=replies, authors=authors, mover=mover, moves=wanted))


def play_from(session: Session, actor: Actor, environment: Environment, rollout_id: uuid.UUID, *, turns: int) -> Run:
    """A new episode of this person on a rollout's task, begun with its first `turns` replies."""
    rollout = rollout_of(session, environment, rollout_id)
    task = rollout.group.task
    spec = TaskSpec(task.split, task.index, task.level, task.seed, task.arguments)
    replies = [str(step["reply"]) for step in rollout.steps][:turns]
    author = (
        "" if rollout.run.policy is None or rollout.run.policy.kind is PolicyKind.HUMAN else rollout.run.policy.name
    )
    return start_play(session, actor, environment, task.version, spec, replies=replies, authors=[author] * len(replies))


def save_fixture(
    session: Session,
    actor: Actor,
    environment: Environment,
    rollout_id: uuid.UUID,
    *,
    name: str,
    note: str,
    kind: FixtureKind,
) -> str:
    """Write the episode and what it earned as a fixture into the draft; its path."""
    rollout = _finished(session, environment, rollout_id)
    path = fixture_path(name)
    draft = locked_draft(session, environment)
    if path in draft.files:
        raise InvalidInput(fields={"name": f"The draft has a fixture {name} already."})
    text = write_fixture(_fixture_of(rollout, name, note, kind))
    write_draft(session, actor, draft, {**draft.files, path: text})
    audit(session, actor, "environment.fixture", "environment", environment.id, path=path, rollout=str(rollout.id))
    return path


def mark_demonstration(
    session: Session, actor: Actor, environment: Environment, rollout_id: uuid.UUID, *, is_wanted: bool
) -> Rollout:
    """May the SFT warm-up learn from this episode?"""
    rollout = _finished(session, environment, rollout_id)
    if is_wanted and rollout.group.task.split is Split.HELDOUT:
        raise TaskIsHeldOut
    if rollout.is_demonstration != is_wanted:
        rollout.is_demonstration = is_wanted
        audit(session, actor, "rollout.demonstration", "rollout", rollout.id, is_wanted=is_wanted)
        session.flush()
    return rollout


def rollout_of(
    session: Session, environment: Environment, rollout_id: uuid.UUID, *, with_messages: bool = False
) -> Rollout:
    """A rollout of this environment with its task, run and steps. Raises NotFound."""
    statement = (
        select(Rollout)
        .join(Rollout.group)
        .join(Group.task)
        .join(Task.version)
        .where(Rollout.id == rollout_id, EnvironmentVersion.environment_id == environment.id)
        .options(
            joinedload(Rollout.run).joinedload(Run.policy),
            contains_eager(Rollout.group).contains_eager(Group.task).contains_eager(Task.version),
            undefer(Rollout.steps),
        )
    )
    if with_messages:
        statement = statement.options(undefer(Rollout.messages))
    found = session.scalars(statement).one_or_none()
    if found is None:
        raise NotFound(f"{environment.name} has no such rollout.")
    found.group.task.version.environment = environment
    return found


def _finished(session: Session, environment: Environment, rollout_id: uuid.UUID) -> Rollout:
    rollout = rollout_of(session, environment, rollout_id)
    if rollout.status is not RolloutStatus.COMPLETED:
        raise EpisodeIsNotOver
    return rollout


def _fixture_of(rollout: Rollout, name: str, note: str, kind: FixtureKind) -> Fixture:
    task = rollout.group.task
    manifest = Manifest.model_validate(task.version.manifest)
    usual = task_of(manifest, task.split, task.index)
    return Fixture(
        name=name,
        note=note.strip(),
        task=FixtureTask(
            split=task.split,
            index=task.index,
            seed=task.seed if task.seed != usual.seed else None,
            level=task.level if task.level != usual.level else None,
        ),
        replies=[str(step["reply"]) for step in rollout.steps],
        columns=_columns(manifest, rollout),
        kind=kind,
    )


def _columns(manifest: Manifest, rollout: Rollout) -> dict[str, float]:
    """In full precision from the steps; the stored values are single precision."""
    exact = columns_over_episode(manifest.columns, [step["rewards"] for step in rollout.steps])
    stored = dict(zip(rollout.run.columns, rollout.columns or (), strict=True))
    turns = max(len(rollout.steps), 1)
    if "format" in stored:
        exact["format"] = round(stored["format"] * turns) / turns
    return {name: value for name, value in exact.items() if name not in UNSAVED_COLUMNS}
