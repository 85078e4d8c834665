"""Operations on episodes that a person plays: on a published version, or on a draft without storing a rollout.

A worker answers each reply. Read the episode again until its phase is `yours`, or the trial until it is not waiting.
"""

import uuid
from dataclasses import replace
from datetime import UTC, datetime

from sqlalchemy.orm import Session

from backend.core.events import RUNS, announce, topic_of
from backend.domain.environments.fixtures import Fixture, FixtureTask, write_fixture
from backend.domain.environments.manifest import ActionSpec
from backend.domain.environments.play import PlayPhase, PlayState
from backend.domain.environments.prompts import write_reply
from backend.domain.rollouts.rollout import columns_over_episode, task_of
from backend.domain.vocabulary import Role, RolloutStatus, RunStatus, Split, StopReason
from backend.environments import drafts, play, queries, schemas, trials
from backend.environments import references as _references  # noqa: F401  how addresses name environments
from backend.environments.tables import Environment
from backend.environments.validation import validate_package
from backend.errors import Conflict, InvalidInput
from backend.operations.declaration import operation
from backend.policies.queries import get_policy_option
from backend.web.audit import audit
from backend.web.identity import Actor

PLAY_PAGE = "/environments/{environment}/play/{run_id}"

# On a published version


@operation("POST /environments/{environment}/play", role=Role.AUTHOR, status=201, audited=False, page=PLAY_PAGE)
def start_play(
    session: Session, actor: Actor, environment: Environment, request: schemas.StartPlay
) -> schemas.PlayResponse:
    """Start an episode. Parts of the task that you leave open are random.

    In an environment with seats, you take one seat and a policy the others.
    """
    version = queries.get_version(session, environment, request.version)
    manifest = version.typed_manifest
    task = play.choose_task(manifest, request.split, level=request.level, index=request.index, seed=request.seed)
    state = play.choose_seats(session, manifest, request.seat, request.opponent)
    run = play.start_play(session, actor, environment, version, task, state)
    return get_play(session, actor, environment, run.id)


@operation("GET /environments/{environment}/play/{run_id}", role=Role.VIEWER)
def get_play(session: Session, actor: Actor, environment: Environment, run_id: uuid.UUID) -> schemas.PlayResponse:
    """Show a hand-played episode."""
    view = play.play_view(session, environment.name, run_id)
    rollout, task, state = view.rollout, view.task, view.state
    return schemas.PlayResponse.from_row(
        rollout,
        run_id=view.run.id,
        rollout_id=rollout.id,
        environment=environment.name,
        version=view.version.number,
        split=task.split,
        index=task.index,
        level=task.level,
        seed=task.seed,
        phase="failed" if view.is_failed else state.phase,
        message=state.message or view.run.reason or "",
        divergence=state.divergence,
        revision=state.revision,
        turns=len(rollout.steps),
        max_turns=state.total,
        text=view.text,
        observation=view.observation,
        choices=[choice.reply for choice in view.choices],
        action_schema=view.run.configuration.get("action_schema") or {},
        authors=state.authors,
        columns=view.columns,
        seat=rollout.seat or state.seat or None,
        opponent=view.opponent,
        score=view.score,
    )


@operation("POST /environments/{environment}/play/{run_id}/reply", role=Role.AUTHOR, audited=False)
def send_reply(
    session: Session, actor: Actor, environment: Environment, run_id: uuid.UUID, request: schemas.SendReply
) -> schemas.PlayResponse:
    """Send a reply, or an action that is written as a reply."""
    run = play.get_play(session, environment.name, run_id)
    text = _reply_of(request, run.version.typed_manifest.proctor.agent.action)
    state = play.locked_state(session, actor, run, request.revision)
    play.request_play(session, run, state, [*play.replies_of(session, run), play.plain_reply(text)])
    return get_play(session, actor, environment, run_id)


@operation("POST /environments/{environment}/play/{run_id}/back", role=Role.AUTHOR, audited=False, page=PLAY_PAGE)
def take_back_reply(
    session: Session, actor: Actor, environment: Environment, run_id: uuid.UUID, request: schemas.SeenEpisode
) -> schemas.PlayResponse:
    """Undo the last reply: the episode is replayed with one fewer."""
    run = play.get_play(session, environment.name, run_id)
    state = play.locked_state(session, actor, run, request.revision)
    replies = play.replies_of(session, run)
    if not replies:
        raise Conflict("There is no reply to take back yet.")
    play.request_play(session, run, state, replies[:-1])
    return get_play(session, actor, environment, run_id)


@operation("POST /environments/{environment}/play/{run_id}/retry", role=Role.AUTHOR, audited=False, page=PLAY_PAGE)
def retry_play(
    session: Session, actor: Actor, environment: Environment, run_id: uuid.UUID, request: schemas.SeenEpisode
) -> schemas.PlayResponse:
    """Try again after the environment or its worker failed."""
    run = play.get_play(session, environment.name, run_id)
    state = play.locked_state(session, actor, run, request.revision)
    if state.phase is not PlayPhase.STUCK and run.status is not RunStatus.FAILED:
        raise Conflict("Nothing failed here; send a reply.")
    play.request_play(session, run, state)
    return get_play(session, actor, environment, run_id)


@operation("POST /environments/{environment}/play/{run_id}/leave", role=Role.AUTHOR, audited=False, page=PLAY_PAGE)
def leave_play(session: Session, actor: Actor, environment: Environment, run_id: uuid.UUID) -> schemas.PlayResponse:
    """End the episode without a reward."""
    run = play.get_play(session, environment.name, run_id)
    state = play.locked_state(session, actor, run, at_any_time=True)
    rollout = play.rollout_of_play(session, run)
    rollout.status = RolloutStatus.CANCELLED
    rollout.stop_reason = StopReason.ABANDONED
    rollout.ended_at = run.ended_at = datetime.now(UTC)
    run.status = RunStatus.STOPPED
    run.reason = "Left before the end."
    run.progress = replace(state, phase=PlayPhase.OVER).as_json()
    audit(session, actor, "play.abandon", "run", run.id)
    session.flush()
    announce(session, topic_of("run", run.id), RUNS)
    return get_play(session, actor, environment, run_id)


@operation(
    "POST /environments/{environment}/play/{run_id}/again", role=Role.AUTHOR, status=201, audited=False, page=PLAY_PAGE
)
def replay_episode(
    session: Session, actor: Actor, environment: Environment, run_id: uuid.UUID, request: schemas.ReplayEpisode
) -> schemas.PlayResponse:
    """Start a new episode on the same task, from the beginning or after some of this episode's replies."""
    run = play.get_play(session, environment.name, run_id)
    task, replies = play.rollout_of_play(session, run).group.task, play.replies_of(session, run)[: request.turns]
    old = PlayState.from_json(run.progress)
    state = PlayState(PlayPhase.OPENING, replies, old.authors[: request.turns], seat=old.seat, opponent=old.opponent)
    if replies:  # what the other seats replied to them is given again
        state = replace(state, others=old.others, is_assisted=True)
    new = play.start_play(session, actor, environment, run.version, task, state)
    return get_play(session, actor, environment, new.id)


@operation("POST /environments/{environment}/play/{run_id}/policy", role=Role.AUTHOR, audited=False, page=PLAY_PAGE)
def let_policy_play(
    session: Session, actor: Actor, environment: Environment, run_id: uuid.UUID, request: schemas.LetPolicyPlay
) -> schemas.PlayResponse:
    """Let a policy play the next turns, or to the end. You may continue after that."""
    run = play.get_play(session, environment.name, run_id)
    state = play.locked_state(session, actor, run, request.revision)
    mover = get_policy_option(session, request.policy)
    turns = state.total if request.moves is None else max(1, min(request.moves, state.total))
    audit(session, actor, "play.let_policy_play", "run", run.id, policy=mover["name"], moves=turns)
    run.configuration = {**run.configuration, "mover": request.policy}  # preselected on the page
    play.request_play(session, run, state, play.replies_of(session, run), mover=mover, moves=turns)
    return get_play(session, actor, environment, run_id)


@operation("POST /environments/{environment}/play/{run_id}/over", role=Role.AUTHOR, audited=False, page=PLAY_PAGE)
def take_over(session: Session, actor: Actor, environment: Environment, run_id: uuid.UUID) -> schemas.PlayResponse:
    """Stop the policy and continue by hand."""
    run = play.get_play(session, environment.name, run_id)
    state = play.locked_state(session, actor, run, at_any_time=True)
    if not state.mover:
        raise Conflict("No policy is playing here; it is your turn.")
    play.request_play(session, run, state, play.replies_of(session, run))
    return get_play(session, actor, environment, run_id)


@operation("POST /environments/{environment}/play/{run_id}/opponent", role=Role.AUTHOR, audited=False, page=PLAY_PAGE)
def replace_opponent(
    session: Session, actor: Actor, environment: Environment, run_id: uuid.UUID, request: schemas.ReplaceOpponent
) -> schemas.PlayResponse:
    """Let another policy continue on the other seats. Turns that were played stay."""
    run = play.get_play(session, environment.name, run_id)
    manifest = run.version.typed_manifest
    state = play.locked_state(session, actor, run, request.revision)
    if manifest.proctor.seats is None:
        raise Conflict(f"{manifest.name} declares no seats: one policy plays each episode.")
    opponent = play.choose_opponent(session, manifest, request.opponent) if request.opponent else {}
    name = opponent.get("name") or manifest.proctor.seats.others
    audit(session, actor, "play.replace_opponent", "run", run.id, policy=name)
    run.configuration = {**run.configuration, "opponent": opponent or None}
    play.request_play(session, run, replace(state, opponent=opponent, is_assisted=True))
    return get_play(session, actor, environment, run_id)


@operation("POST /environments/{environment}/play/from", role=Role.AUTHOR, status=201, audited=False, page=PLAY_PAGE)
def branch_rollout(
    session: Session, actor: Actor, environment: Environment, request: schemas.BranchRollout
) -> schemas.PlayResponse:
    """Continue any rollout of this environment by hand, from one of its turns.

    If several policies played it, you take one seat, and the others give their replies up to that turn again.
    """
    rollout = play.rollout_of(session, environment, request.rollout_id, is_kept=False)
    task, state = (
        rollout.group.task,
        play.continue_from(session, rollout, request.turns, request.seat, request.opponent),
    )
    run = play.start_play(session, actor, environment, task.version, task, state)
    return get_play(session, actor, environment, run.id)


@operation(
    "POST /environments/{environment}/fixtures",
    role=Role.AUTHOR,
    status=201,
    audited=False,
    page="/environments/{environment}/edit?file={path}",
    notice="{path} is in the draft. Publish to keep it.",
)
def save_fixture(
    session: Session, actor: Actor, environment: Environment, request: schemas.SaveFixture
) -> schemas.FixtureResponse:
    """Save a finished episode in the draft as a fixture: its replies and its columns."""
    rollout = play.rollout_of(session, environment, request.rollout_id, is_finished=True)
    task, turns = rollout.group.task, max(len(rollout.steps), 1)
    manifest = task.version.typed_manifest
    usual = task_of(manifest, task.split, task.index)
    # computed from the steps, because stored values are single precision
    columns = columns_over_episode(manifest.columns, [step["rewards"] for step in rollout.steps])
    stored = dict(zip(rollout.run.columns, rollout.columns or (), strict=True))
    if "format" in stored:
        columns["format"] = round(stored["format"] * turns) / turns
    fixture = Fixture(
        name=request.name,
        note=request.note.strip(),
        task=FixtureTask(
            split=task.split,
            index=task.index,
            seed=task.seed if task.seed != usual.seed else None,
            level=task.level if task.level != usual.level else None,
        ),
        replies=[str(step["reply"]) for step in rollout.steps],
        # the length depends on a policy's tokenizer
        columns={name: value for name, value in columns.items() if name != "length"},
        kind=request.kind,
    )
    path, draft = fixture.path, drafts.locked_draft(session, environment)
    if path in draft.files:
        raise InvalidInput(fields={"name": f"The draft has a fixture {request.name} already."})
    draft = drafts.write_draft(session, actor, draft, {**draft.files, path: write_fixture(fixture)})
    audit(session, actor, "environment.fixture", "environment", environment.id, path=path, rollout=str(rollout.id))
    return schemas.FixtureResponse(path=path, text=draft.files[path], revision=draft.revision)


@operation(
    "POST /environments/{environment}/demonstrations",
    role=Role.AUTHOR,
    audited=False,
    page="/rollouts/{rollout_id}",
    notice="The episode is {state} for the SFT warm-up.",
)
def mark_demonstration(
    session: Session, actor: Actor, environment: Environment, request: schemas.MarkDemonstration
) -> schemas.DemonstrationResponse:
    """Allow or forbid the SFT warm-up to learn from an episode."""
    rollout, is_wanted = play.rollout_of(session, environment, request.rollout_id, is_finished=True), request.is_wanted
    if is_wanted and rollout.group.task.split is Split.HELDOUT:
        raise Conflict("This task is held out: training on it would spoil held-out evaluations. Play a training task.")
    if rollout.is_demonstration != is_wanted:
        rollout.is_demonstration = is_wanted
        audit(session, actor, "rollout.demonstration", "rollout", rollout.id, is_wanted=is_wanted)
        session.flush()
    state = "marked" if is_wanted else "no longer marked"
    return schemas.DemonstrationResponse(rollout_id=rollout.id, is_wanted=is_wanted, state=state)


# On a draft


@operation("POST /environments/{environment}/try", role=Role.AUTHOR, status=201, tool=True, audited=False)
def reset_trial(
    session: Session, actor: Actor, environment: Environment, request: schemas.ChooseTask
) -> schemas.TrialResponse:
    """Reset the draft to the start of a task. Parts of the task that you leave open are random."""
    trials.reset_trial(session, actor, environment, request)
    return get_trial(session, actor, environment)


@operation("GET /environments/{environment}/try", role=Role.AUTHOR, tool=True)
def get_trial(session: Session, actor: Actor, environment: Environment) -> schemas.TrialResponse:
    """Show your trial of the draft."""
    return schemas.TrialResponse.of(trials.get_trial(session, actor, environment))


@operation("POST /environments/{environment}/try/act", role=Role.AUTHOR, tool=True, audited=False)
def act_in_trial(
    session: Session, actor: Actor, environment: Environment, request: schemas.SendReply
) -> schemas.TrialResponse:
    """Send a reply to the draft, or an action that is written as a reply."""
    manifest = validate_package(queries.get_draft(session, environment).files, environment.name).manifest
    if manifest is None and request.action is not None:
        raise InvalidInput(fields={"action": "The draft's manifest cannot be read."})
    reply = _reply_of(request, manifest.proctor.agent.action if manifest else None)
    trials.continue_trial(session, actor, environment, "act", reply)
    return get_trial(session, actor, environment)


@operation("POST /environments/{environment}/try/replay", role=Role.AUTHOR, audited=False)
def replay_trial(session: Session, actor: Actor, environment: Environment) -> schemas.TrialResponse:
    """Play the same task and replies on the current draft."""
    trials.continue_trial(session, actor, environment, "replay")
    return get_trial(session, actor, environment)


@operation("POST /environments/{environment}/try/script", role=Role.AUTHOR, tool=True, audited=False)
def run_script_in_trial(
    session: Session, actor: Actor, environment: Environment, request: schemas.RunScript
) -> schemas.TrialResponse:
    """Let a scripted policy of the package play the trial to its end."""
    trials.continue_trial(session, actor, environment, "script", request.script)
    return get_trial(session, actor, environment)


@operation("POST /environments/{environment}/try/back", role=Role.AUTHOR, audited=False)
def take_back_in_trial(session: Session, actor: Actor, environment: Environment) -> schemas.TrialResponse:
    """Undo the last reply of the trial."""
    trials.continue_trial(session, actor, environment, "back")
    return get_trial(session, actor, environment)


def _reply_of(request: schemas.SendReply, spec: ActionSpec | None) -> str:
    if (request.reply is None) == (request.action is None):
        raise InvalidInput(fields={"reply": "Give either a reply or an action."})
    if request.reply is not None or spec is None:
        return request.reply or ""
    return write_reply(spec, request.action or {})
