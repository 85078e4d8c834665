"""Try a draft: reset it with a task, act, read the columns. One trial per person; it creates no rollouts."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, undefer

from backend.core.events import announce, topic_of
from backend.core.queue import enqueue
from backend.domain.environments.manifest import Manifest
from backend.domain.ids import new_id
from backend.domain.vocabulary import Queue, RolloutStatus
from backend.environments.action_form import ActionChoice, ActionField, action_fields, legal_choices
from backend.environments.play import choose_task, plain_reply
from backend.environments.queries import get_draft
from backend.environments.schemas import ChooseTask
from backend.environments.tables import DraftTrial, Environment, EnvironmentDraft
from backend.environments.validation import validate_package
from backend.errors import Conflict, InvalidInput
from backend.web.identity import Actor
from backend.web.transcripts import Entry, transcript_of

TRY_JOB = "environments.try"


class NothingToTry(Conflict):
    """Reset the draft with a task first."""


@dataclass(frozen=True, slots=True)
class TrialView:
    """Content of the trial panel."""

    trial: DraftTrial
    is_stale: bool
    """Whether the draft was saved since it answered."""
    text: str
    """The prompt that a model would read now; empty when the episode has ended."""
    observation: Mapping[str, Any]
    entries: Sequence[Entry]
    columns: Sequence[tuple[str, float, float]]
    """(name, value so far, weight)"""
    choices: Sequence[ActionChoice]
    fields: Sequence[ActionField]
    scripts: Sequence[str]

    @property
    def error(self) -> str:
        return str(self.trial.answer.get("error", ""))

    @property
    def is_over(self) -> bool:
        return bool(self.trial.answer.get("status") == RolloutStatus.COMPLETED)

    @property
    def turns(self) -> int:
        return len(self.trial.answer.get("steps", ()))


def reset_trial(session: Session, actor: Actor, environment: Environment, chosen: ChooseTask) -> None:
    """Start a new trial on this task; open parts of it are random."""
    manifest = _manifest(environment, get_draft(session, environment))
    task = choose_task(manifest, chosen.split, level=chosen.level, index=chosen.index, seed=chosen.seed)
    row = {"id": new_id(), "environment_id": environment.id, "person_id": actor.person_id, "revision": 1}
    row |= {"is_waiting": False, "task": {}, "replies": [], "draft_revision": 0, "answer": {}}
    session.execute(insert(DraftTrial).values(row).on_conflict_do_nothing())
    trial = _locked(session, actor, environment)
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
    trial = _locked(session, actor, environment)
    if move != "replay" and not trial.task:
        raise NothingToTry
    played = [str(step["reply"]) for step in trial.answer.get("steps", ())]
    match move:
        case "act":
            _request(session, environment, trial, [*played, plain_reply(text)])
        case "back":
            _request(session, environment, trial, played[:-1])
        case "replay":
            _request(session, environment, trial, trial.replies)
        case "script":
            _request(session, environment, trial, played, script=text)


def find_trial(session: Session, environment_id: uuid.UUID, person_id: uuid.UUID) -> DraftTrial | None:
    statement = select(DraftTrial).where(DraftTrial.environment_id == environment_id, DraftTrial.person_id == person_id)
    return session.scalars(statement.options(undefer(DraftTrial.answer))).one_or_none()


def trial_view(
    session: Session, draft: EnvironmentDraft, person_id: uuid.UUID, manifest: Manifest | None
) -> TrialView | None:
    """Return the trial with its transcript; None before the first trial. `manifest`: the draft's, if it is valid."""
    trial = find_trial(session, draft.environment_id, person_id)
    if trial is None or not trial.task:
        return None
    answer = trial.answer
    messages, steps = list(answer.get("messages", ())), answer.get("steps", [])
    is_open = bool(messages) and messages[-1]["role"] == "user"
    text = str(messages.pop()["content"]) if is_open else ""
    taken = [step["observation"] for step in steps if step["action"] is not None]
    observation = taken[-1] if taken else answer.get("opening", {})
    columns = [(name, value, weight) for name, value, weight in answer.get("columns", ())]
    spec = manifest.proctor.agent.action if manifest else None
    return TrialView(
        trial=trial,
        is_stale=trial.draft_revision != draft.revision and not trial.is_waiting,
        text=text,
        observation=observation,
        entries=transcript_of(messages, steps, [row[0] for row in columns], weights=[row[2] for row in columns]),
        columns=columns,
        choices=legal_choices(spec, observation) if spec and is_open else (),
        fields=action_fields(spec, answer.get("action_schema", {}), answer.get("opening", {}) | observation)
        if spec and is_open
        else (),
        scripts=manifest.proctor.scripts if manifest else (),
    )


def _manifest(environment: Environment, draft: EnvironmentDraft) -> Manifest:
    validation = validate_package(draft.files, environment.name)
    if validation.manifest is None or validation.problems:
        first = validation.problems[0]
        raise InvalidInput(f"The draft cannot be tried yet. {first.place}{first.key} {first.message}.")
    return validation.manifest


def _locked(session: Session, actor: Actor, environment: Environment) -> DraftTrial:
    statement = select(DraftTrial).where(
        DraftTrial.environment_id == environment.id, DraftTrial.person_id == actor.person_id
    )
    trial = session.scalars(statement.options(undefer(DraftTrial.answer)).with_for_update()).one_or_none()
    if trial is None:
        raise NothingToTry
    return trial


def _request(
    session: Session, environment: Environment, trial: DraftTrial, replies: list[str], script: str = ""
) -> None:
    """Store the request and queue the job that reads it. It replaces an older request."""
    _manifest(environment, get_draft(session, environment))
    trial.replies = replies
    trial.revision += 1
    trial.is_waiting = True
    trial.updated_at = datetime.now(UTC)
    session.flush()
    arguments = {"trial_id": str(trial.id), "revision": trial.revision, "script": script}
    enqueue(session, TRY_JOB, queue=Queue.CPU, arguments=arguments)
    announce(session, topic_of("trial", environment.id, trial.person_id))
