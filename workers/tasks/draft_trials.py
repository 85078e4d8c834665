"""The job `environments.try`: serve a draft as it is saved, replay all replies, store the responses."""

import time
import uuid
from collections.abc import Mapping
from pathlib import Path

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
from workers.storage.episodes import Scene, replay
from workers.tasks.execute import run_async
from workers.tasks.registry import JobContext

TRACED = "proctor_draft_app"
"""Module name of `draft_app.py` in the served package."""


def run(context: JobContext) -> None:
    trial_id, revision = uuid.UUID(context.arguments["trial_id"]), context.arguments["revision"]
    with transaction() as session:
        trial = session.get(DraftTrial, trial_id)
        if trial is None or not trial.is_waiting or trial.revision != revision:
            return  # a newer request exists
        draft = session.get_one(EnvironmentDraft, trial.environment_id)
        try:
            manifest = read_manifest(draft.files.get(MANIFEST_PATH, ""))
        except ManifestInvalid as error:
            give_up(session, context, f"{MANIFEST_PATH}: {error}")
            return
        files = traced_files(with_generated(draft.files), manifest)
        task = TaskSpec(Split(trial.task["split"]), trial.task["index"], trial.task["level"], trial.task["seed"])
        scene = Scene(task, content_hash(files), files, manifest, list(trial.replies))
        draft_revision = draft.revision
    script = str(context.arguments.get("script", ""))
    policy = ScriptedPolicy(script) if script else None
    began = time.monotonic()
    played = run_async(replay(scene, mover=policy, moves=manifest.proctor.episode.max_turns))
    rollout = played.rollout
    columns = rollout.columns or columns_over_episode(manifest.columns, [step.rewards for step in rollout.steps])
    fields = {
        "opening": rollout.opening,
        "steps": rollout.steps,
        "messages": rollout.messages,
        "columns": [[column.name, columns.get(column.name, 0.0), column.weight] for column in manifest.columns],
        "metrics": rollout.metrics,
        "reward": rollout.reward,
        "status": "failed" if played.error else rollout.status,
        "stop_reason": rollout.stop_reason,
        "action_schema": played.action_schema,
        "error": played.error,
        "seconds": time.monotonic() - began,
    }
    answer = orjson.loads(json_text(fields))
    with transaction() as session:
        trial = session.get(DraftTrial, trial_id, with_for_update=True)
        if trial is None or trial.revision != revision:
            return
        if not played.error:  # else the replies are kept, to try again on a fixed draft
            trial.replies = [step["reply"] for step in answer["steps"]]
        trial.answer, trial.is_waiting, trial.draft_revision = answer, False, draft_revision
        announce(session, trial_topic(trial.environment_id, trial.person_id))


def give_up(session: Session, context: JobContext, error: str) -> None:
    """Answer the newest request with an error."""
    trial = session.get(DraftTrial, uuid.UUID(context.arguments["trial_id"]))
    if trial is not None and trial.revision == context.arguments["revision"]:
        trial.answer, trial.is_waiting = {"error": error}, False
        announce(session, trial_topic(trial.environment_id, trial.person_id))


def traced_files(files: dict[str, str], manifest: Manifest) -> dict[str, str]:
    """Put an app in front of the draft's own that reports tracebacks."""
    app = (Path(__file__).parent / "draft_app.py").read_text(encoding="utf-8").replace("__APP__", manifest.app)
    served: Mapping[str, object] = {**read_yaml(files[MANIFEST_PATH]), "app": f"{TRACED}:app"}
    text = yaml.safe_dump(served, sort_keys=False, allow_unicode=True)
    return {**files, MANIFEST_PATH: text, f"{TRACED}.py": app}
