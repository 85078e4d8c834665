"""Operations on episodes that a person plays: on a published version, or on a draft without storing a rollout.

A worker answers each reply. Read the episode again until its phase is `yours`, or the trial until it is not waiting.
"""

import uuid

from sqlalchemy.orm import Session

from backend.domain.environments.manifest import ActionSpec, Manifest
from backend.domain.environments.prompts import write_reply
from backend.domain.vocabulary import Role
from backend.environments import operations as _operations  # noqa: F401  how addresses name environments
from backend.environments import play, play_queries, queries, schemas, trials
from backend.environments.play_queries import play_view
from backend.environments.tables import Environment
from backend.environments.validation import validate_package
from backend.errors import InvalidInput
from backend.operations.declaration import operation
from backend.web.identity import Actor

PLAY_PAGE = "/environments/{environment}/play/{run_id}"

# On a published version


@operation("POST /environments/{environment}/play", role=Role.AUTHOR, status=201, audited=False)
def start_play(
    session: Session, actor: Actor, environment: Environment, request: schemas.ChooseTask
) -> schemas.PlayResponse:
    """Start an episode. Parts of the task that you leave open are random."""
    version = queries.get_version(session, environment, request.version)
    manifest = Manifest.model_validate(version.manifest)
    task = play.choose_task(manifest, request.split, level=request.level, index=request.index, seed=request.seed)
    return _play(session, environment, play.start_play(session, actor, environment, version, task).id)


@operation("GET /environments/{environment}/play/{run_id}", role=Role.VIEWER)
def get_play(session: Session, actor: Actor, environment: Environment, run_id: uuid.UUID) -> schemas.PlayResponse:
    """Show a hand-played episode."""
    return _play(session, environment, run_id)


@operation("POST /environments/{environment}/play/{run_id}/reply", role=Role.AUTHOR, audited=False)
def send_reply(
    session: Session, actor: Actor, environment: Environment, run_id: uuid.UUID, request: schemas.SendReply
) -> schemas.PlayResponse:
    """Send a reply, or an action that is written as a reply."""
    run = play_queries.get_play(session, environment.name, run_id)
    text = _reply_of(request, Manifest.model_validate(run.version.manifest).proctor.agent.action)
    play.send_reply(session, actor, run, text, request.revision)
    return _play(session, environment, run_id)


@operation("POST /environments/{environment}/play/{run_id}/back", role=Role.AUTHOR, audited=False)
def take_back_reply(
    session: Session, actor: Actor, environment: Environment, run_id: uuid.UUID
) -> schemas.PlayResponse:
    """Undo the last reply."""
    play.take_back(session, actor, play_queries.get_play(session, environment.name, run_id))
    return _play(session, environment, run_id)


@operation("POST /environments/{environment}/play/{run_id}/retry", role=Role.AUTHOR, audited=False)
def retry_play(session: Session, actor: Actor, environment: Environment, run_id: uuid.UUID) -> schemas.PlayResponse:
    """Try again after the environment or its worker failed."""
    play.try_again(session, actor, play_queries.get_play(session, environment.name, run_id))
    return _play(session, environment, run_id)


@operation("POST /environments/{environment}/play/{run_id}/leave", role=Role.AUTHOR, audited=False, page=PLAY_PAGE)
def leave_play(session: Session, actor: Actor, environment: Environment, run_id: uuid.UUID) -> schemas.PlayResponse:
    """End the episode without a reward."""
    play.abandon_play(session, actor, play_queries.get_play(session, environment.name, run_id))
    return _play(session, environment, run_id)


@operation(
    "POST /environments/{environment}/play/{run_id}/again", role=Role.AUTHOR, status=201, audited=False, page=PLAY_PAGE
)
def replay_episode(
    session: Session, actor: Actor, environment: Environment, run_id: uuid.UUID, request: schemas.ReplayEpisode
) -> schemas.PlayResponse:
    """Start a new episode on the same task, from the beginning or after some of this episode's replies."""
    run = play_queries.get_play(session, environment.name, run_id)
    return _play(session, environment, play.play_again(session, actor, run, turns=request.turns).id)


@operation("POST /environments/{environment}/play/{run_id}/policy", role=Role.AUTHOR, audited=False, page=PLAY_PAGE)
def let_policy_play(
    session: Session, actor: Actor, environment: Environment, run_id: uuid.UUID, request: schemas.LetPolicyPlay
) -> schemas.PlayResponse:
    """Let a policy play the next turns."""
    run = play_queries.get_play(session, environment.name, run_id)
    play.let_policy_play(session, actor, run, request.policy, moves=request.moves, revision=request.revision)
    return _play(session, environment, run_id)


@operation("POST /environments/{environment}/play/{run_id}/over", role=Role.AUTHOR, audited=False, page=PLAY_PAGE)
def take_over(session: Session, actor: Actor, environment: Environment, run_id: uuid.UUID) -> schemas.PlayResponse:
    """Stop the policy and continue by hand."""
    play.take_over(session, actor, play_queries.get_play(session, environment.name, run_id))
    return _play(session, environment, run_id)


@operation(
    "POST /environments/{environment}/play/from",
    role=Role.AUTHOR,
    status=201,
    audited=False,
    page=PLAY_PAGE,
)
def branch_rollout(
    session: Session, actor: Actor, environment: Environment, request: schemas.BranchRollout
) -> schemas.PlayResponse:
    """Continue any rollout of this environment by hand, from one of its turns."""
    run = play.play_from(session, actor, environment, request.rollout_id, turns=request.turns)
    return _play(session, environment, run.id)


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
    """Save a finished episode in the draft as a fixture."""
    path = play.save_fixture(
        session, actor, environment, request.rollout_id, name=request.name, note=request.note, kind=request.kind
    )
    draft = queries.get_draft(session, environment)
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
    play.mark_demonstration(session, actor, environment, request.rollout_id, is_wanted=request.is_wanted)
    return schemas.DemonstrationResponse(
        rollout_id=request.rollout_id,
        is_wanted=request.is_wanted,
        state="marked" if request.is_wanted else "no longer marked",
    )


# On a draft


@operation("POST /environments/{environment}/try", role=Role.AUTHOR, status=201, tool=True, audited=False)
def reset_trial(
    session: Session, actor: Actor, environment: Environment, request: schemas.ChooseTask
) -> schemas.TrialResponse:
    """Reset the draft to the start of a task. Parts of the task that you leave open are random."""
    trials.reset_trial(session, actor, environment, request)
    return _trial(session, actor, environment)


@operation("GET /environments/{environment}/try", role=Role.AUTHOR, tool=True)
def get_trial(session: Session, actor: Actor, environment: Environment) -> schemas.TrialResponse:
    """Show your trial of the draft."""
    return _trial(session, actor, environment)


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
    return _trial(session, actor, environment)


@operation("POST /environments/{environment}/try/replay", role=Role.AUTHOR, audited=False)
def replay_trial(session: Session, actor: Actor, environment: Environment) -> schemas.TrialResponse:
    """Play the same task and replies on the current draft."""
    trials.continue_trial(session, actor, environment, "replay")
    return _trial(session, actor, environment)


@operation("POST /environments/{environment}/try/script", role=Role.AUTHOR, tool=True, audited=False)
def run_script_in_trial(
    session: Session, actor: Actor, environment: Environment, request: schemas.RunScript
) -> schemas.TrialResponse:
    """Let a scripted policy of the package play the trial to its end."""
    trials.continue_trial(session, actor, environment, "script", request.script)
    return _trial(session, actor, environment)


@operation("POST /environments/{environment}/try/back", role=Role.AUTHOR, audited=False)
def take_back_in_trial(session: Session, actor: Actor, environment: Environment) -> schemas.TrialResponse:
    """Undo the last reply of the trial."""
    trials.continue_trial(session, actor, environment, "back")
    return _trial(session, actor, environment)


def _reply_of(request: schemas.SendReply, spec: ActionSpec | None) -> str:
    if (request.reply is None) == (request.action is None):
        raise InvalidInput(fields={"reply": "Give either a reply or an action."})
    if request.reply is not None or spec is None:
        return request.reply or ""
    return write_reply(spec, request.action or {})


def _play(session: Session, environment: Environment, run_id: uuid.UUID) -> schemas.PlayResponse:
    view = play_view(session, environment.name, run_id)
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
    )


def _trial(session: Session, actor: Actor, environment: Environment) -> schemas.TrialResponse:
    trial = trials.find_trial(session, environment.id, actor.person_id)
    if trial is None:
        raise trials.NothingToTry
    return schemas.TrialResponse.of(trial)
