"""Hand play: a rollout that a person plays. Each reply is a job that replays the episode with one more reply."""

import secrets
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, contains_eager, joinedload, undefer

from backend.core.events import RUNS, announce, topic_of
from backend.core.queue import enqueue
from backend.domain.environments.manifest import ActionSpec, Manifest
from backend.domain.environments.play import PlayPhase, PlayState
from backend.domain.environments.views import RenderedView, ViewRenderer
from backend.domain.ids import new_id, stable_id
from backend.domain.rollouts.rollout import TaskSpec, columns_over_episode, task_of, weighted_reward
from backend.domain.runs.plans import EvaluationPlan, Opponent
from backend.domain.vocabulary import Phase, PolicyKind, RolloutStatus, RunKind, RunStatus, Split
from backend.environments.action_form import ActionChoice, ActionField, action_fields, legal_choices
from backend.environments.tables import Environment, EnvironmentVersion
from backend.errors import Conflict, InvalidInput, NotAllowed, NotFound
from backend.policies.queries import BASELINES, PolicyOption, get_policy_option, policy_options
from backend.policies.tables import Policy
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.tables import Run
from backend.web.audit import audit
from backend.web.identity import Actor
from backend.web.transcripts import Entry, transcript_of, with_views

HUMAN = "human"
"""Name of the policy of all people."""
MAX_REPLY_CHARACTERS = 20_000
MAX_SEED = 2**63 - 1


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
    task: TaskSpec | Task,
    state: PlayState | None = None,
) -> Run:
    """Start an episode on this task. `state`: the replies of another episode to continue from, and its seats."""
    manifest = version.typed_manifest
    state = state or PlayState(PlayPhase.OPENING)
    human = {"id": new_id(), "name": HUMAN, "kind": PolicyKind.HUMAN, "description": "A person who plays by hand."}
    new_policy = insert(Policy).values(human | {"configuration": {}})
    session.execute(new_policy.on_conflict_do_nothing(index_elements=["name"]))
    run = Run(
        kind=RunKind.PLAY,
        name=f"{actor.name[:100]} plays {environment.name} v{version.number}",
        version_id=version.id,
        policy_id=session.scalars(select(Policy.id).where(Policy.name == HUMAN)).one(),
        configuration={
            "split": str(task.split),
            "index": task.index,
            "level": task.level,
            "seed": task.seed,
            **({"seat": state.seat, "opponent": state.opponent or None} if manifest.proctor.seats else {}),
        },
        columns=manifest.column_names,
        weights=[column.weight for column in manifest.columns],
        seed=task.seed,
        created_by=actor.person_id,
        next_seq=2,
    )
    session.add(run)
    session.flush()
    # its group and rollout, which the job fills
    task_id = stable_id("task", version.id, task.split, task.index, task.seed)
    row = {"id": task_id, "version_id": version.id, "split": task.split, "index": task.index}
    row |= {"level": task.level, "seed": task.seed, "arguments": dict(task.arguments)}
    session.execute(insert(Task).values(row).on_conflict_do_nothing())
    group_id = stable_id("group", run.id, Phase.PLAY, None, 0)
    session.add(Group(id=group_id, run_id=run.id, task_id=task_id, phase=Phase.PLAY, ordinal=0))
    session.flush()
    rollout = Rollout(id=stable_id("rollout", group_id, 0), run_id=run.id, group_id=group_id, member=0, seq=1)
    rollout.phase, rollout.status, rollout.level = Phase.PLAY, RolloutStatus.PLAYING, task.level
    rollout.started_at = datetime.now(UTC)
    session.add(rollout)
    session.flush()
    audit(session, actor, "play.start", "run", run.id, environment=environment.name, version=version.number)
    request_play(session, run, replace(state, total=manifest.proctor.episode.max_turns))
    announce(session, RUNS)
    return run


def choose_seats(session: Session, manifest: Manifest, seat: str | None, opponent: str | None) -> PlayState:
    """Return the state of an episode on this seat against this policy. Raises InvalidInput.

    Default: the seat by the task, the script of the manifest as opponent.
    """
    seats = manifest.proctor.seats
    if seats is None and (seat or opponent):
        problem = f"{manifest.name} declares no seats: one policy plays each episode. Leave this empty."
        raise InvalidInput(fields={"seat" if seat else "opponent": problem})
    if seats is not None and seat and seat not in seats.names:
        raise InvalidInput(fields={"seat": f"The seats are {', '.join(seats.names)}."})
    chosen = choose_opponent(session, manifest, opponent) if opponent else {}
    return PlayState(PlayPhase.OPENING, seat=seat or "", opponent=chosen)


def choose_opponent(session: Session, manifest: Manifest, key: str) -> dict[str, Any]:
    """Return a policy for the other seats, with its price. Raises InvalidInput if it cannot play."""
    try:
        option = get_policy_option(session, key)
    except InvalidInput as error:
        raise InvalidInput(fields={"opponent": " ".join(error.fields.values())}) from error
    policy = session.get_one(Policy, uuid.UUID(str(option["policy_id"])))
    if policy.kind is PolicyKind.EXTERNAL:
        raise InvalidInput(fields={"opponent": f"{policy.name} played elsewhere; its rollouts were imported."})
    script = policy.configuration.get("script")
    if policy.kind is PolicyKind.SCRIPTED and script not in BASELINES and script not in manifest.proctor.scripts:
        raise InvalidInput(fields={"opponent": f"{manifest.name} offers no script `{script}` for this policy."})
    return {**option, "price": policy.configuration.get("price")}


def continue_from(
    session: Session, rollout: Rollout, turns: int, seat: str | None = None, opponent: str | None = None
) -> PlayState:
    """Return the state that continues a stored rollout after some of its replies. Raises InvalidInput.

    `seat`: the seat to take, default the policy's own. `opponent`: who takes the other seats, default the policy that
    took them in the rollout, or the manifest's script if it can no longer play.
    """
    policy, manifest, seats = rollout.run.policy, rollout.group.task.version.typed_manifest, rollout.seats
    author = "" if policy is None or policy.kind is PolicyKind.HUMAN else policy.name
    steps = {rollout.seat: rollout.steps}
    if seats is not None:
        steps |= {play["seat"]: play["steps"] for play in seats["others"]}
    if seats is None and manifest.proctor.seats is not None:
        raise Conflict("This rollout was stored without the turns of the other seats. It cannot be continued.")
    state = choose_seats(session, manifest, seat, opponent)
    own = seat or rollout.seat
    if own not in steps:
        raise InvalidInput(fields={"seat": f"No policy took the seat {own} in this rollout."})
    if seats is not None and own != rollout.seat:
        author = next(play["policy"] for play in seats["others"] if play["seat"] == own)
    if seats is not None and not opponent:
        usual = EvaluationPlan.model_validate(rollout.run.configuration).opponent
        key = usual.key if usual else ""
        if own != rollout.seat:
            key = ":".join(str(each) for each in (policy and policy.id, rollout.run.checkpoint_id) if each)
        with suppress(InvalidInput):
            state = replace(state, opponent=choose_opponent(session, manifest, key) if key else {})
    replies = [str(step["reply"]) for step in steps[own]][:turns]
    others = {
        name: [
            {"text": step["reply"], "tokens_in": step.get("tokens_in") or 0, "tokens_out": step.get("tokens_out") or 0}
            | {"cached_in": step.get("tokens_cached") or 0, "after": 0}
            for step in each
        ]
        for name, each in steps.items()
        if name is not None and name != own
    }
    return replace(
        state, seat=own or "", replies=replies, authors=[author] * len(replies), others=others, is_assisted=True
    )


def locked_state(
    session: Session, actor: Actor, run: Run, revision: int | None = None, *, at_any_time: bool = False
) -> PlayState:
    """Lock the run and return its state. Raises an error unless it is this person's open episode and turn.

    `revision`: as shown on the page, so that a form sent twice acts once. `at_any_time`: even before the answer.
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


def request_play(
    session: Session,
    run: Run,
    state: PlayState,
    replies: list[str] | None = None,
    *,
    mover: Mapping[str, Any] | None = None,
    moves: int = 0,
) -> None:
    """Store the request and queue the job that reads it.

    `replies`: exactly these, and then `moves` turns of the policy `mover`; their known authors are kept. Default: the
    request of the state, unchanged.
    """
    if replies is not None:
        is_assisted = state.is_assisted or bool(mover) or len(replies) < len(state.authors)
        authors = state.authors[: len(replies)]
        state = replace(state, replies=replies, authors=authors, mover=dict(mover or {}), moves=moves)
        state = replace(state, is_assisted=is_assisted)
    phase = PlayPhase.THINKING if state.replies or state.mover else PlayPhase.OPENING
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    state = replace(state, phase=phase, revision=state.revision + 1, message="", divergence="", asked_at=now)
    run.progress = state.as_json()
    if run.status is RunStatus.FAILED:
        run.status = RunStatus.QUEUED
        run.reason = run.ended_at = None
    session.flush()
    enqueue(session, "environments.play", queue=state.queue, run_id=run.id)
    announce(session, topic_of("run", run.id))


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


def rollout_of(
    session: Session,
    environment: Environment,
    rollout_id: uuid.UUID,
    *,
    with_messages: bool = False,
    is_finished: bool = False,
    is_kept: bool = True,
) -> Rollout:
    """Return a rollout of this environment with its task, run and steps. Raises NotFound.

    `is_finished`: refuse an episode that has not been completed. `is_kept`: and one that several policies played.
    """
    statement = (
        select(Rollout)
        .join(Rollout.group)
        .join(Group.task)
        .join(Task.version)
        .where(Rollout.id == rollout_id, EnvironmentVersion.environment_id == environment.id)
        .options(
            joinedload(Rollout.run).joinedload(Run.policy),
            contains_eager(Rollout.group).contains_eager(Group.task).contains_eager(Task.version),
            undefer(Rollout.opening),
            undefer(Rollout.steps),
            undefer(Rollout.seats),
        )
    )
    if with_messages:
        statement = statement.options(undefer(Rollout.messages))
    found = session.scalars(statement).one_or_none()
    if found is None:
        raise NotFound(f"{environment.name} has no such rollout.")
    if is_finished and found.status is not RolloutStatus.COMPLETED:
        raise Conflict("Only a finished episode can be kept.")
    if is_kept and found.seat is not None:
        raise Conflict(
            "Several policies played this episode. It cannot be kept, because the others would play differently the "
            "next time."
        )
    found.group.task.version.environment = environment
    return found


def get_play(session: Session, name: str, run_id: uuid.UUID) -> Run:
    """Return the play run with its version and environment. Raises NotFound."""
    statement = (
        select(Run)
        .join(Run.version)
        .join(EnvironmentVersion.environment)
        .options(contains_eager(Run.version).contains_eager(EnvironmentVersion.environment), joinedload(Run.creator))
        .where(Run.id == run_id, Run.kind == RunKind.PLAY, Environment.name == name)
    )
    run = session.scalars(statement).one_or_none()
    if run is None:
        raise NotFound("There is no such episode of this environment.")
    return run


def rollout_of_play(session: Session, run: Run) -> Rollout:
    """Return the rollout of a play run with its task and its deferred columns."""
    options = (undefer(Rollout.opening), undefer(Rollout.steps), undefer(Rollout.messages))
    with_task = joinedload(Rollout.group).joinedload(Group.task)
    statement = select(Rollout).where(Rollout.run_id == run.id).options(*options, with_task)
    return session.scalars(statement.execution_options(populate_existing=True)).one()


def replies_of(session: Session, run: Run) -> list[str]:
    """Return the replies that the environment has answered."""
    return [str(step["reply"]) for step in rollout_of_play(session, run).steps]


@dataclass(frozen=True, slots=True)
class PlayView:
    """The current state of an episode."""

    run: Run
    environment: Environment
    version: EnvironmentVersion
    manifest: Manifest
    spec: ActionSpec
    task: Task
    rollout: Rollout
    state: PlayState
    observation: Mapping[str, Any]
    """The latest one."""
    text: str
    """The observation as a model would read it; empty when the episode has ended."""
    views: Sequence[RenderedView]
    """How the observation looks, if the manifest declares it."""
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
    opponent: str
    """Who takes the other seats; empty if there are none."""
    opponent_key: str
    """The policy as a request names it; empty for the environment's script."""
    score: float | None
    """Result of a finished game: 1 for a win, 0.5 for a draw, 0 for a loss."""
    foreign_moves: Mapping[str, Sequence[int]]
    """Turns of each policy that played here, by its name, counted from 1."""
    is_over: bool
    is_failed: bool
    """The worker gave up; the replies are kept."""
    is_waiting: bool


def play_view(session: Session, name: str, run_id: uuid.UUID) -> PlayView:
    """Read an episode. Raises NotFound."""
    run = get_play(session, name, run_id)
    rollout = rollout_of_play(session, run)
    state = PlayState.from_json(run.progress)
    manifest = run.version.typed_manifest
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
    entries = transcript_of(messages, rollout.steps, run.columns, weights=run.weights) if messages else []
    renderer = ViewRenderer(manifest.proctor.views)
    foreign_moves: dict[str, list[int]] = {}
    for turn, author in enumerate(state.authors, start=1):
        if author:
            foreign_moves.setdefault(author, []).append(turn)
    seats = manifest.proctor.seats
    opponent = str(state.opponent.get("name") or f"the environment's script {seats.others}") if seats else ""
    score = run.summary.get("score")
    is_over, is_failed = run.status in {RunStatus.COMPLETED, RunStatus.STOPPED}, run.status is RunStatus.FAILED
    return PlayView(
        run=run,
        environment=run.version.environment,
        version=run.version,
        manifest=manifest,
        spec=spec,
        task=rollout.group.task,
        rollout=rollout,
        state=state,
        observation=observation,
        text=text,
        views=renderer.render(
            dict(observation), taken[-1]["action"] if taken else None, rollout.opening, rollout.steps
        ),
        entries=with_views(entries, renderer, rollout.opening, rollout.steps, is_end_shown=False),
        columns=columns,
        reward=weighted_reward(manifest.columns, columns),
        fields=action_fields(spec, run.configuration.get("action_schema") or {}, {**rollout.opening, **observation}),
        choices=legal_choices(spec, observation),
        pending=state.replies[-1] if len(state.replies) > len(rollout.steps) else None,
        policies=policy_options(session, manifest) if run.status is RunStatus.RUNNING else (),
        opponent=opponent,
        opponent_key=Opponent.model_validate(state.opponent).key if state.opponent else "",
        score=float(score) if isinstance(score, int | float) else None,
        foreign_moves=foreign_moves,
        is_over=is_over,
        is_failed=is_failed,
        is_waiting=state.phase.is_waiting and not is_over and not is_failed,
    )
