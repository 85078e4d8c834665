"""Trying a draft for scripts: reset it, act, look until `is_waiting` is false. Nothing of it becomes a rollout."""

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from sqlalchemy.orm import Session

from backend.domain.environments.manifest import Manifest
from backend.domain.environments.prompts import write_reply
from backend.environments import queries, trials
from backend.environments.requests import ChosenTask
from backend.environments.responses import ReplyIn
from backend.environments.validation import validate_package
from backend.errors import InvalidInput
from backend.web.dependencies import Author, SessionDep
from backend.web.identity import Actor

router = APIRouter(prefix="/api/v1", tags=["environments"])


class TrialOut(BaseModel):
    task: dict[str, Any]
    is_waiting: bool
    draft_revision: int
    """Of the draft that answered."""
    replies: list[str]
    answer: dict[str, Any]
    """`opening`, `steps`, `messages`, `columns` [name, value, weight], `reward`, `status`, `error` and traceback."""


class ScriptIn(BaseModel):
    script: str = Field(default="gold", min_length=1, max_length=40)


@router.post("/environments/{name}/try", status_code=201)
def reset_trial(name: str, request: ChosenTask, session: SessionDep, actor: Author) -> TrialOut:
    """Reset the draft as it is saved; what is left open of the task is drawn at random."""
    trials.reset_trial(session, actor, queries.get_environment(session, name), request)
    return _shown(session, actor, name)


@router.get("/environments/{name}/try")
def show_trial(name: str, session: SessionDep, actor: Author) -> TrialOut:
    return _shown(session, actor, name)


@router.post("/environments/{name}/try/act")
def act(name: str, request: ReplyIn, session: SessionDep, actor: Author) -> TrialOut:
    """A whole reply, or an action, which is put into the words of a model."""
    environment = queries.get_environment(session, name)
    if (request.reply is None) == (request.action is None):
        raise InvalidInput(fields={"reply": "Give either a reply or an action."})
    reply = request.reply
    if reply is None:
        found = validate_package(queries.get_draft(session, environment).files, name).manifest
        reply = write_reply(_need(found).proctor.agent.action, request.action or {})
    trials.act(session, actor, environment, reply)
    return _shown(session, actor, name)


@router.post("/environments/{name}/try/replay")
def replay(name: str, session: SessionDep, actor: Author) -> TrialOut:
    """The same task and replies on the draft as it is saved now."""
    trials.replay(session, actor, queries.get_environment(session, name))
    return _shown(session, actor, name)


@router.post("/environments/{name}/try/script")
def follow_script(name: str, request: ScriptIn, session: SessionDep, actor: Author) -> TrialOut:
    """A script of the environment plays on to the end."""
    trials.follow_script(session, actor, queries.get_environment(session, name), request.script)
    return _shown(session, actor, name)


@router.post("/environments/{name}/try/back")
def take_back(name: str, session: SessionDep, actor: Author) -> TrialOut:
    """Undo the last reply."""
    trials.take_back(session, actor, queries.get_environment(session, name))
    return _shown(session, actor, name)


def _need(manifest: Manifest | None) -> Manifest:
    if manifest is None:
        raise InvalidInput(fields={"action": "The draft's manifest cannot be read."})
    return manifest


def _shown(session: Session, actor: Actor, name: str) -> TrialOut:
    trial = trials.find_trial(session, queries.get_environment(session, name).id, actor.person_id)
    if trial is None:
        raise trials.NothingToTry
    return TrialOut.model_validate(trial, from_attributes=True)
