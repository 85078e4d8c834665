"""Trying a draft: its files as they are saved, served by the env host; all replies are replayed, the answer kept."""

import asyncio
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import yaml
from sqlalchemy.orm import Session

from backend.core.events import announce, trial_topic
from backend.core.session import transaction
from backend.domain.environments.manifest import Manifest, ManifestInvalid, read_manifest
from backend.domain.environments.packages import MANIFEST_PATH, content_hash
from backend.domain.rollouts.rollout import TaskSpec, columns_over_episode
from backend.domain.text import json_text
from backend.domain.vocabulary import Split
from backend.domain.yaml_text import read_yaml
from backend.environments.scaffold import with_generated
from backend.environments.tables import DraftTrial, EnvironmentDraft
from workers.policies.scripted import ScriptedPolicy
from workers.storage.episodes import Played, Scene, replay
from workers.tasks.event_loops import run_async
from workers.tasks.registry import JobContext

TRACED = "proctor_draft_app"


@dataclass(frozen=True, slots=True)
class _Question:
    """The trial to run."""

    trial_id: uuid.UUID
    revision: int
    draft_revision: int
    scene: Scene
    script: str


def run(context: JobContext) -> None:
    """The job `environments.try`."""
    question = _read(context)
    if question is not None:
        run_async(_try(question))


def give_up(session: Session, context: JobContext, error: str) -> None:
    """The worker failed and will not try again."""
    _settle(session, context, {"error": error})


def _read(context: JobContext) -> _Question | None:
    """None if a newer request exists."""
    with transaction() as session:
        trial = session.get(DraftTrial, uuid.UUID(context.arguments["trial_id"]))
        if trial is None or not trial.is_waiting or trial.revision != context.arguments["revision"]:
            return None
        draft = session.get_one(EnvironmentDraft, trial.environment_id)
        try:
            manifest = read_manifest(draft.files.get(MANIFEST_PATH, ""))
        except ManifestInvalid as error:
            _settle(session, context, {"error": f"{MANIFEST_PATH}: {error}"})
            return None
        files = traced_files(with_generated(draft.files), manifest)
        scene = Scene(_task(trial), content_hash(files), files, manifest, list(trial.replies))
        return _Question(trial.id, trial.revision, draft.revision, scene, str(context.arguments.get("script", "")))


def traced_files(files: dict[str, str], manifest: Manifest) -> dict[str, str]:
    """The draft with an app in front of its own that reports tracebacks."""
    written: dict[str, Any] = read_yaml(files[MANIFEST_PATH])
    app = (Path(__file__).parent / "draft_app.py").read_text(encoding="utf-8").replace("__APP__", manifest.app)
    served = yaml.safe_dump(written | {"app": f"{TRACED}:app"}, sort_keys=False, allow_unicode=True)
    return {**files, MANIFEST_PATH: served, f"{TRACED}.py": app}


def _task(trial: DraftTrial) -> TaskSpec:
    told = trial.task
    return TaskSpec(Split(told["split"]), told["index"], told["level"], told["seed"])


async def _try(question: _Question) -> None:
    began = time.monotonic()
    mover = ScriptedPolicy(question.script) if question.script else None
    moves = question.scene.manifest.proctor.episode.max_turns
    played = await replay(question.scene, mover=mover, moves=moves)
    answer = _answer(question.scene.manifest, played) | {"seconds": time.monotonic() - began}
    await asyncio.to_thread(_store, question, answer)


def _answer(manifest: Manifest, played: Played) -> dict[str, Any]:
    rollout = played.rollout
    so_far = rollout.columns or columns_over_episode(manifest.columns, [step.rewards for step in rollout.steps])
    answer = {
        "opening": rollout.opening,
        "steps": rollout.steps,
        "messages": rollout.messages,
        "columns": [[column.name, so_far.get(column.name, 0.0), column.weight] for column in manifest.columns],
        "metrics": rollout.metrics,
        "reward": rollout.reward,
        "status": "failed" if played.error else rollout.status,
        "stop_reason": rollout.stop_reason,
        "action_schema": played.action_schema,
        "error": played.error,
    }
    known: dict[str, Any] = orjson.loads(json_text(answer))
    return known


def _store(question: _Question, answer: dict[str, Any]) -> None:
    with transaction() as session:
        trial = session.get(DraftTrial, question.trial_id, with_for_update=True)
        if trial is None or trial.revision != question.revision:
            return
        if not answer["error"]:  # else the replies are kept, to be tried again on a mended draft
            trial.replies = [step["reply"] for step in answer["steps"]]
        trial.answer, trial.is_waiting, trial.draft_revision = answer, False, question.draft_revision
        announce(session, trial_topic(trial.environment_id, trial.person_id))


def _settle(session: Session, context: JobContext, answer: dict[str, Any]) -> None:
    trial = session.get(DraftTrial, uuid.UUID(context.arguments["trial_id"]))
    if trial is not None and trial.revision == context.arguments["revision"]:
        trial.answer, trial.is_waiting = answer, False
        announce(session, trial_topic(trial.environment_id, trial.person_id))
