"""Try a draft: reset it with a task, act, read the columns. One trial per person; it creates no rollouts."""

import uuid
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, undefer

from backend.core.events import announce, topic_of
from backend.core.queue import enqueue
from backend.domain.environments.manifest import Manifest
from backend.domain.environments.views import ViewRenderer
from backend.domain.ids import new_id
from backend.domain.vocabulary import Queue, RolloutStatus
from backend.environments.action_form import action_fields, legal_choices
from backend.environments.play import choose_task, plain_reply
from backend.environments.queries import get_draft
from backend.environments.schemas import ChooseTask
from backend.environments.tables import DraftTrial, Environment, EnvironmentDraft
from backend.environments.validation import validate_package
from backend.errors import Conflict, InvalidInput
from backend.web.identity import Actor
from backend.web.transcripts import transcript_of, with_views


class NothingToTry(Conflict):
    """Reset the draft with a task first."""


def reset_trial(session: Session, actor: Actor, environment: Environment, chosen: ChooseTask) -> None:
    """Start a new trial on this task; open parts of it are random."""
    manifest = _usable_manifest(session, environment)
    task = choose_task(manifest, chosen.split, level=chosen.level, index=chosen.index, seed=chosen.seed)
    row = {"id": new_id(), "environment_id": environment.id, "person_id": actor.person_id, "revision": 1}
    row |= {"is_waiting": False, "task": {}, "replies": [], "draft_revision": 0, "answer": {}}
    session.execute(insert(DraftTrial).values(row).on_conflict_do_nothing())
    trial = get_trial(session, actor, environment, is_locked=True)
    trial.task = {"split": str(task.split), "index": task.index, "level": task.level, "seed": task.seed}
    trial.answer = {}
    _request(session, environment, trial, [])


def continue_trial(
    session: Session,
    actor: Actor,
    environment: Environment,
    move: Literal["act", "back", "replay", "script"],
    text: str = "",
) -> None:
    """Send a reply, undo the last one, play the same replies on the current draft, or let a script play to the end.

    `text`: the reply, or the script's name.
    """
    trial = get_trial(session, actor, environment, is_locked=True)
    if move != "replay" and not trial.task:
        raise NothingToTry
    played = [str(step["reply"]) for step in trial.answer.get("steps", ())]
    replies = played
    if move == "act":
        replies = [*played, plain_reply(text)]
    elif move == "back":
        replies = played[:-1]
    elif move == "replay":
        replies = trial.replies
    _request(session, environment, trial, replies, script=text if move == "script" else "")


def find_trial(
    session: Session, environment_id: uuid.UUID, person_id: uuid.UUID, *, is_locked: bool = False
) -> DraftTrial | None:
    statement = select(DraftTrial).where(DraftTrial.environment_id == environment_id, DraftTrial.person_id == person_id)
    statement = statement.options(undefer(DraftTrial.answer))
    return session.scalars(statement.with_for_update() if is_locked else statement).one_or_none()


def get_trial(session: Session, actor: Actor, environment: Environment, *, is_locked: bool = False) -> DraftTrial:
    trial = find_trial(session, environment.id, actor.person_id, is_locked=is_locked)
    if trial is None:
        raise NothingToTry
    return trial


def trial_view(
    session: Session, draft: EnvironmentDraft, person_id: uuid.UUID, manifest: Manifest | None
) -> dict[str, Any] | None:
    """Return the content of the trial panel; None before the first trial. `manifest`: the draft's, if it is valid."""
    trial = find_trial(session, draft.environment_id, person_id)
    if trial is None or not trial.task:
        return None
    answer = trial.answer
    messages, steps = list(answer.get("messages", ())), answer.get("steps", [])
    is_open = bool(messages) and messages[-1]["role"] == "user"
    text = str(messages.pop()["content"]) if is_open else ""
    taken = [step["observation"] for step in steps if step["action"] is not None]
    observation = taken[-1] if taken else answer.get("opening", {})
    columns = answer.get("columns", ())
    spec = manifest.proctor.agent.action if manifest and is_open else None
    opening, is_over = answer.get("opening", {}), answer.get("status") == RolloutStatus.COMPLETED
    entries = transcript_of(messages, steps, [row[0] for row in columns], weights=[row[2] for row in columns])
    renderer = ViewRenderer(manifest.proctor.views if manifest else ())
    action = next((step["action"] for step in reversed(steps) if step["action"] is not None), None)
    schema, seen = answer.get("action_schema", {}), opening | observation
    return {
        "trial": trial,
        "is_stale": trial.draft_revision != draft.revision and not trial.is_waiting,  # saved since it answered
        "is_over": is_over,
        "error": str(answer.get("error", "")),
        "turns": len(steps),
        "text": text,  # the prompt that a model would read now
        "views": renderer.render(observation, action, opening, steps) if is_open else (),
        "entries": with_views(entries, renderer, opening, steps, is_end_shown=is_over),
        "columns": columns,  # (name, value so far, weight)
        "choices": legal_choices(spec, observation) if spec else (),
        "fields": action_fields(spec, schema, seen) if spec else (),
        "scripts": manifest.proctor.scripts if manifest else (),
    }


def _usable_manifest(session: Session, environment: Environment) -> Manifest:
    validation = validate_package(get_draft(session, environment).files, environment.name)
    if validation.manifest is None or validation.problems:
        first = validation.problems[0]
        raise InvalidInput(f"The draft cannot be tried yet. {first.place}{first.key} {first.message}.")
    return validation.manifest


def _request(
    session: Session, environment: Environment, trial: DraftTrial, replies: list[str], script: str = ""
) -> None:
    """Store the request and queue the job that reads it. It replaces an older request."""
    _usable_manifest(session, environment)
    trial.replies = replies
    trial.revision += 1
    trial.is_waiting = True
    trial.updated_at = datetime.now(UTC)
    session.flush()
    arguments = {"trial_id": str(trial.id), "revision": trial.revision, "script": script}
    enqueue(session, "environments.try", queue=Queue.CPU, arguments=arguments)
    announce(session, topic_of("trial", environment.id, trial.person_id))
