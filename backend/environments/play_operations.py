"""Hand play for scripts: start, look, reply, take back, leave. Replies are answered by a worker: look until `yours`."""

import uuid

from fastapi import APIRouter
from sqlalchemy.orm import Session

from backend.domain.environments.manifest import Manifest
from backend.domain.environments.prompts import write_reply
from backend.environments import continued_play, play, play_rows, queries
from backend.environments.play_view import play_view
from backend.environments.requests import Branch, ChosenTask, Demonstration, LetPlay, NewFixture
from backend.environments.responses import AgainIn, FixtureOut, PlayOut, ReplyIn
from backend.errors import InvalidInput
from backend.web.dependencies import Author, SessionDep, Viewer

router = APIRouter(prefix="/api/v1", tags=["environments"])


@router.post("/environments/{name}/play", status_code=201)
def start_play(name: str, request: ChosenTask, session: SessionDep, actor: Author) -> PlayOut:
    """A new episode; what is left open of its task is drawn at random."""
    environment = queries.get_environment(session, name)
    version = queries.get_version(session, environment, request.version)
    manifest = Manifest.model_validate(version.manifest)
    task = play.choose_task(manifest, request.split, level=request.level, index=request.index, seed=request.seed)
    return _shown(session, name, play.start_play(session, actor, environment, version, task).id)


@router.get("/environments/{name}/play/{run_id}")
def show_play(name: str, run_id: uuid.UUID, session: SessionDep, _: Viewer) -> PlayOut:
    return _shown(session, name, run_id)


@router.post("/environments/{name}/play/{run_id}/reply")
def send_reply(name: str, run_id: uuid.UUID, request: ReplyIn, session: SessionDep, actor: Author) -> PlayOut:
    run = play_rows.get_play(session, name, run_id)
    if (request.reply is None) == (request.action is None):
        raise InvalidInput(fields={"reply": "Give either a reply or an action."})
    text = request.reply
    if text is None:
        spec = Manifest.model_validate(run.version.manifest).proctor.agent.action
        text = write_reply(spec, request.action or {})
    play.send_reply(session, actor, run, text, request.revision)
    return _shown(session, name, run_id)


@router.post("/environments/{name}/play/{run_id}/back")
def take_back(name: str, run_id: uuid.UUID, session: SessionDep, actor: Author) -> PlayOut:
    """Undo the last reply."""
    play.take_back(session, actor, play_rows.get_play(session, name, run_id))
    return _shown(session, name, run_id)


@router.post("/environments/{name}/play/{run_id}/retry")
def try_again(name: str, run_id: uuid.UUID, session: SessionDep, actor: Author) -> PlayOut:
    """Ask the environment once more after it failed."""
    play.try_again(session, actor, play_rows.get_play(session, name, run_id))
    return _shown(session, name, run_id)


@router.post("/environments/{name}/play/{run_id}/leave")
def leave(name: str, run_id: uuid.UUID, session: SessionDep, actor: Author) -> PlayOut:
    """End the episode without a reward."""
    play.abandon_play(session, actor, play_rows.get_play(session, name, run_id))
    return _shown(session, name, run_id)


@router.post("/environments/{name}/play/{run_id}/again", status_code=201)
def play_again(name: str, run_id: uuid.UUID, request: AgainIn, session: SessionDep, actor: Author) -> PlayOut:
    """A new episode on the same task, from the start or from a turn of this one."""
    run = play.play_again(session, actor, play_rows.get_play(session, name, run_id), turns=request.turns)
    return _shown(session, name, run.id)


@router.post("/environments/{name}/play/{run_id}/policy")
def let_play(name: str, run_id: uuid.UUID, request: LetPlay, session: SessionDep, actor: Author) -> PlayOut:
    """A policy plays the next turns; look until `yours`."""
    run = play_rows.get_play(session, name, run_id)
    continued_play.let_play(session, actor, run, request.policy, moves=request.moves, revision=request.revision)
    return _shown(session, name, run_id)


@router.post("/environments/{name}/play/{run_id}/over")
def take_over(name: str, run_id: uuid.UUID, session: SessionDep, actor: Author) -> PlayOut:
    """Stop the policy that plays on."""
    play.take_over(session, actor, play_rows.get_play(session, name, run_id))
    return _shown(session, name, run_id)


@router.post("/environments/{name}/play/from", status_code=201)
def play_from(name: str, request: Branch, session: SessionDep, actor: Author) -> PlayOut:
    """Play on by hand from a turn of any rollout of this environment."""
    environment = queries.get_environment(session, name)
    run = continued_play.play_from(session, actor, environment, request.rollout_id, turns=request.turns)
    return _shown(session, name, run.id)


@router.post("/environments/{name}/fixtures", status_code=201)
def save_fixture(name: str, request: NewFixture, session: SessionDep, actor: Author) -> FixtureOut:
    """Write an episode into the draft as a fixture."""
    environment = queries.get_environment(session, name)
    path = continued_play.save_fixture(
        session, actor, environment, request.rollout_id, name=request.name, note=request.note, kind=request.kind
    )
    draft = queries.get_draft(session, environment)
    return FixtureOut(path=path, text=draft.files[path], revision=draft.revision)


@router.post("/environments/{name}/demonstrations")
def mark_demonstration(name: str, request: Demonstration, session: SessionDep, actor: Author) -> Demonstration:
    """May the SFT warm-up learn from this episode?"""
    environment = queries.get_environment(session, name)
    continued_play.mark_demonstration(session, actor, environment, request.rollout_id, is_wanted=request.is_wanted)
    return request


def _shown(session: Session, name: str, run_id: uuid.UUID) -> PlayOut:
    view = play_view(session, name, run_id)
    rollout, task, state = view.rollout, view.task, view.state
    return PlayOut(
        run_id=view.run.id,
        rollout_id=rollout.id,
        environment=name,
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
        observation=dict(view.observation),
        choices=[choice.reply for choice in view.choices],
        action_schema=view.run.configuration.get("action_schema") or {},
        steps=rollout.steps,
        authors=view.state.authors,
        columns=dict(view.columns),
        status=rollout.status,
        stop_reason=rollout.stop_reason,
        reward=rollout.reward,
    )
