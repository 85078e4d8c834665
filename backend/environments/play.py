"""Hand play: a rollout that a person plays. Each reply is a job that replays the episode with one more reply."""

import secrets
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, contains_eager, joinedload, undefer

from backend.core.events import RUNS, announce, topic_of
from backend.core.queue import enqueue
from backend.domain.environments.fixtures import Fixture, FixtureKind, FixtureTask, write_fixture
from backend.domain.environments.manifest import Manifest
from backend.domain.environments.play import PlayPhase, PlayState
from backend.domain.ids import new_id
from backend.domain.rollouts.rollout import TaskSpec, columns_over_episode, task_of
from backend.domain.vocabulary import PolicyKind, Queue, RolloutStatus, RunKind, RunStatus, Split, StopReason
from backend.environments.drafts import locked_draft, write_draft
from backend.environments.play_queries import HUMAN, add_rollout, replies_of, rollout_of_play, task_of_play
from backend.environments.tables import Environment, EnvironmentVersion
from backend.errors import Conflict, InvalidInput, NotAllowed, NotFound
from backend.policies.queries import get_policy_option
from backend.policies.tables import Policy
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.tables import Run
from backend.web.audit import audit
from backend.web.identity import Actor

PLAY_JOB = "environments.play"
MAX_REPLY_CHARACTERS = 20_000
MAX_SEED = 2**63 - 1
UNSAVED_COLUMNS = frozenset({"length"})
"""Columns that depend on a policy's tokenizer, so a fixture cannot contain them."""


def choose_task(
    manifest: Manifest, split: Split, *, level: int | None = None, index: int | None = None, seed: int | None = None
) -> TaskSpec:
    """Return the requested task; open parts are random."""
    tasks = manifest.proctor.tasks
    count = tasks.heldout if split is Split.HELDOUT else tasks.train
    if level is not None and not 0 <= level < min(tasks.levels, count):
        raise InvalidInput(fields={"level": f"There are levels 0 to {min(tasks.levels, count) - 1}."})
    if index is None:
        index = secrets.randbelow(count)
        if level is not None:
            index = level + tasks.levels * secrets.randbelow((count - 1 - level) // tasks.levels + 1)
    if not 0 <= index < count:
        raise InvalidInput(fields={"index": f"There are tasks 0 to {count - 1:,} in this split."})
    if level is not None and index % tasks.levels != level:
        raise InvalidInput(fields={"index": f"Task {index} has level {index % tasks.levels}, not {level}."})
    if seed is not None and not 0 <= seed <= MAX_SEED:
        raise InvalidInput(fields={"seed": f"A seed is a whole number from 0 to {MAX_SEED}."})
    return task_of(manifest, split, index, seed)


def start_play(
    session: Session,
    actor: Actor,
    environment: Environment,
    version: EnvironmentVersion,
    task: TaskSpec,
    *,
    replies: Sequence[str] = (),
    authors: Sequence[str] = (),
) -> Run:
    """Start an episode on this task. `replies`: continue from these replies of another episode."""
    manifest = Manifest.model_validate(version.manifest)
    human = {"id": new_id(), "name": HUMAN, "kind": PolicyKind.HUMAN, "description": "A person who plays by hand."}
    new_policy = insert(Policy).values(human | {"configuration": {}})
    session.execute(new_policy.on_conflict_do_nothing(index_elements=["name"]))
    run = Run(
        kind=RunKind.PLAY,
        name=f"{actor.name[:100]} plays {environment.name} v{version.number}",
        version_id=version.id,
        policy_id=session.scalars(select(Policy.id).where(Policy.name == HUMAN)).one(),
        configuration={"split": str(task.split), "index": task.index, "level": task.level, "seed": task.seed},
        columns=manifest.column_names,
        weights=[column.weight for column in manifest.columns],
        seed=task.seed,
        created_by=actor.person_id,
        next_seq=2,
    )
    session.add(run)
    session.flush()
    add_rollout(session, run, task)
    audit(session, actor, "play.start", "run", run.id, environment=environment.name, version=version.number)
    turns = manifest.proctor.episode.max_turns
    request_play(session, run, PlayState(PlayPhase.OPENING, list(replies), authors=list(authors), total=turns))
    announce(session, RUNS)
    return run


def send_reply(session: Session, actor: Actor, run: Run, reply: str, revision: int | None = None) -> None:
    """Send the person's next reply. `revision`: as shown on the page, so that a form sent twice acts once."""
    state = locked_state(session, actor, run, revision)
    _request_replies(session, run, state, [*replies_of(session, run), plain_reply(reply)])


def take_back(session: Session, actor: Actor, run: Run, revision: int | None = None) -> None:
    """Undo the last reply: the episode is replayed with one fewer."""
    state = locked_state(session, actor, run, revision)
    replies = replies_of(session, run)
    if not replies:
        raise Conflict("There is no reply to take back yet.")
    _request_replies(session, run, state, replies[:-1])


def try_again(session: Session, actor: Actor, run: Run, revision: int | None = None) -> None:
    """Repeat the request after the environment or the worker failed."""
    state = locked_state(session, actor, run, revision)
    if state.phase is not PlayPhase.STUCK and run.status is not RunStatus.FAILED:
        raise Conflict("Nothing failed here; send a reply.")
    request_play(session, run, state)


def take_over(session: Session, actor: Actor, run: Run) -> None:
    """Stop the policy and continue by hand."""
    state = locked_state(session, actor, run, at_any_time=True)
    if not state.mover:
        raise Conflict("No policy is playing here; it is your turn.")
    _request_replies(session, run, state, replies_of(session, run))


def abandon_play(session: Session, actor: Actor, run: Run) -> None:
    """Leave the episode. It is kept without a reward."""
    state = locked_state(session, actor, run, at_any_time=True)
    rollout = rollout_of_play(session, run)
    rollout.status = RolloutStatus.CANCELLED
    rollout.stop_reason = StopReason.ABANDONED
    rollout.ended_at = run.ended_at = datetime.now(UTC)
    run.status = RunStatus.STOPPED
    run.reason = "Left before the end."
    run.progress = replace(state, phase=PlayPhase.OVER).as_json()
    audit(session, actor, "play.abandon", "run", run.id)
    session.flush()
    announce(session, topic_of("run", run.id), RUNS)


def play_again(session: Session, actor: Actor, run: Run, *, turns: int = 0) -> Run:
    """Start a new episode on the same task with the first `turns` replies of this one."""
    task = task_of_play(session, run)
    version = run.version
    spec = TaskSpec(task.split, task.index, task.level, task.seed, task.arguments)
    replies, authors = replies_of(session, run)[:turns], PlayState.from_json(run.progress).authors[:turns]
    return start_play(session, actor, version.environment, version, spec, replies=replies, authors=authors)


def locked_state(
    session: Session, actor: Actor, run: Run, revision: int | None = None, *, at_any_time: bool = False
) -> PlayState:
    """Lock the run and return its state. Raises an error unless it is this person's open episode and turn.

    `revision`: as shown on the page, which must be up to date. `at_any_time`: also while the environment answers.
    """
    locked = select(Run).where(Run.id == run.id).with_for_update().execution_options(populate_existing=True)
    session.scalars(locked).one()
    if run.created_by != actor.person_id:
        raise NotAllowed("This episode belongs to someone else. Start your own episode.")
    state = PlayState.from_json(run.progress)
    if state.phase is PlayPhase.OVER or run.status in {RunStatus.COMPLETED, RunStatus.STOPPED}:
        raise Conflict("This episode has ended. Play again to try something else.")
    if revision is not None and revision != state.revision:
        raise Conflict(
            "This page is out of date: the episode continued in another tab, or this form was sent twice. "
            "Reload the page."
        )
    if state.phase.is_waiting and run.status is not RunStatus.FAILED and not at_any_time:
        raise Conflict("The environment is still answering. Wait a moment, then send your reply again.")
    return state


def request_play(session: Session, run: Run, state: PlayState) -> None:
    """Store the request and queue the job that reads it."""
    phase = PlayPhase.THINKING if state.replies or state.mover else PlayPhase.OPENING
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    state = replace(state, phase=phase, revision=state.revision + 1, message="", divergence="", asked_at=now)
    run.progress = state.as_json()
    if run.status is RunStatus.FAILED:
        run.status = RunStatus.QUEUED
        run.reason = run.ended_at = None
    session.flush()
    enqueue(session, PLAY_JOB, queue=Queue(state.mover.get("queue", Queue.CPU)), run_id=run.id)
    announce(session, topic_of("run", run.id))


def _request_replies(
    session: Session,
    run: Run,
    state: PlayState,
    replies: list[str],
    *,
    mover: dict[str, Any] | None = None,
    moves: int = 0,
) -> None:
    """Request the episode with exactly these replies, and then `moves` turns of the policy `mover`.

    Authors of existing replies are kept.
    """
    authors = state.authors[: len(replies)]
    request_play(session, run, replace(state, replies=replies, authors=authors, mover=mover or {}, moves=moves))


def plain_reply(reply: str) -> str:
    """Return the reply as the database stores it. Browsers send line ends as CR LF; a model writes LF."""
    text = reply.replace("\r\n", "\n")
    if len(text) > MAX_REPLY_CHARACTERS:
        raise InvalidInput(fields={"reply": f"At most {MAX_REPLY_CHARACTERS:,} characters."})
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(fields={"reply": "This is not text."}) from error
    if "\x00" in text:
        raise InvalidInput(fields={"reply": "This is not text."})
    return text


def let_policy_play(
    session: Session, actor: Actor, run: Run, key: str, *, moves: int | None, revision: int | None
) -> None:
    """Let the policy play the next `moves` turns, or to the end. The person may continue after that."""
    state = locked_state(session, actor, run, revision)
    mover = get_policy_option(session, key)
    turns = state.total if moves is None else max(1, min(moves, state.total))
    audit(session, actor, "play.let_policy_play", "run", run.id, policy=mover["name"], moves=turns)
    run.configuration = {**run.configuration, "mover": key}  # preselected on the page
    _request_replies(session, run, state, replies_of(session, run), mover=mover, moves=turns)


def play_from(session: Session, actor: Actor, environment: Environment, rollout_id: uuid.UUID, *, turns: int) -> Run:
    """Start a new episode on a rollout's task with its first `turns` replies."""
    rollout = rollout_of(session, environment, rollout_id)
    task = rollout.group.task
    spec = TaskSpec(task.split, task.index, task.level, task.seed, task.arguments)
    replies = [str(step["reply"]) for step in rollout.steps][:turns]
    policy = rollout.run.policy
    author = "" if policy is None or policy.kind is PolicyKind.HUMAN else policy.name
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
    """Save the episode and its columns as a fixture in the draft; return its path."""
    rollout = _finished(session, environment, rollout_id)
    task, turns = rollout.group.task, max(len(rollout.steps), 1)
    manifest = Manifest.model_validate(task.version.manifest)
    usual = task_of(manifest, task.split, task.index)
    # computed from the steps, because stored values are single precision
    columns = columns_over_episode(manifest.columns, [step["rewards"] for step in rollout.steps])
    stored = dict(zip(rollout.run.columns, rollout.columns or (), strict=True))
    if "format" in stored:
        columns["format"] = round(stored["format"] * turns) / turns
    fixture = Fixture(
        name=name,
        note=note.strip(),
        task=FixtureTask(
            split=task.split,
            index=task.index,
            seed=task.seed if task.seed != usual.seed else None,
            level=task.level if task.level != usual.level else None,
        ),
        replies=[str(step["reply"]) for step in rollout.steps],
        columns={name: value for name, value in columns.items() if name not in UNSAVED_COLUMNS},
        kind=kind,
    )
    draft = locked_draft(session, environment)
    if fixture.path in draft.files:
        raise InvalidInput(fields={"name": f"The draft has a fixture {name} already."})
    write_draft(session, actor, draft, {**draft.files, fixture.path: write_fixture(fixture)})
    origin = {"path": fixture.path, "rollout": str(rollout.id)}
    audit(session, actor, "environment.fixture", "environment", environment.id, **origin)
    return fixture.path


def mark_demonstration(
    session: Session, actor: Actor, environment: Environment, rollout_id: uuid.UUID, *, is_wanted: bool
) -> Rollout:
    """Allow or forbid the SFT warm-up to learn from this episode."""
    rollout = _finished(session, environment, rollout_id)
    if is_wanted and rollout.group.task.split is Split.HELDOUT:
        raise Conflict("This task is held out: training on it would spoil held-out evaluations. Play a training task.")
    if rollout.is_demonstration != is_wanted:
        rollout.is_demonstration = is_wanted
        audit(session, actor, "rollout.demonstration", "rollout", rollout.id, is_wanted=is_wanted)
        session.flush()
    return rollout


def rollout_of(
    session: Session, environment: Environment, rollout_id: uuid.UUID, *, with_messages: bool = False
) -> Rollout:
    """Return a rollout of this environment with its task, run and steps. Raises NotFound."""
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
        raise Conflict("Only a finished episode can be kept.")
    return rollout
