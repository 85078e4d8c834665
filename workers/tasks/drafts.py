"""The jobs of drafts as they are saved: `environments.try` plays one, `rescoring.draft` scores stored episodes with it.

A trial serves the draft, replays all replies and stores the responses. For scores, the draft plays the stored replies
of a rollout, of rollouts with the same pattern, and of the newest rollouts. Neither creates rollouts.
"""

import time
import uuid
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import orjson
import yaml
from sqlalchemy import Text, cast, func, select
from sqlalchemy.orm import Session, aliased

from backend.core.events import announce, topic_of
from backend.core.queue import keep_answer
from backend.core.session import transaction
from backend.detectors.tables import Flag
from backend.domain.environments.manifest import ManifestInvalid, read_manifest
from backend.domain.environments.packages import MANIFEST_PATH, content_hash
from backend.domain.rollouts.rollout import TaskSpec, columns_over_episode
from backend.domain.statistics import TIE, estimate_mean
from backend.domain.text import json_text
from backend.domain.vocabulary import Phase, RolloutStatus, RunKind, Split
from backend.domain.yaml_text import read_yaml
from backend.environments.scaffold import with_generated
from backend.environments.tables import DraftTrial, EnvironmentDraft, EnvironmentVersion
from backend.policies.tables import Policy
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.tables import Run
from workers.environments.client import HostRefused
from workers.policies.scripted import ScriptedPolicy
from workers.rollouts.engine import ReplayedEpisode, TooManyFailures, replay_episodes
from workers.storage.env_host import serve
from workers.storage.regrading import read_episode
from workers.tasks.execute import run_async
from workers.tasks.hand_play import Scene, replay
from workers.tasks.registry import JobContext

TRACED = "proctor_draft_app"
"""Module name of `draft_app.py` in the served package."""
MAX_CLUSTER, MAX_HISTORY = 500, 3000
CONCURRENCY = 64


def try_draft(context: JobContext) -> None:
    trial_id, revision = uuid.UUID(context.arguments["trial_id"]), context.arguments["revision"]
    with transaction() as session:
        trial = session.get(DraftTrial, trial_id)
        if trial is None or not trial.is_waiting or trial.revision != revision:
            return  # a newer request exists
        draft = session.get_one(EnvironmentDraft, trial.environment_id)
        try:
            manifest = read_manifest(draft.files.get(MANIFEST_PATH, ""))
        except ManifestInvalid as error:
            give_up_trial(session, context, f"{MANIFEST_PATH}: {error}")
            return
        # an app in front of the draft's own that reports tracebacks
        app = (Path(__file__).parent / "draft_app.py").read_text(encoding="utf-8").replace("__APP__", manifest.app)
        files = with_generated(draft.files)
        served: dict[str, object] = {**read_yaml(files[MANIFEST_PATH]), "app": f"{TRACED}:app"}
        text = yaml.safe_dump(served, sort_keys=False, allow_unicode=True)
        files = {**files, MANIFEST_PATH: text, f"{TRACED}.py": app}
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
        announce(session, topic_of("trial", trial.environment_id, trial.person_id))


def give_up_trial(session: Session, context: JobContext, error: str) -> None:
    """Answer the newest request with an error."""
    trial = session.get(DraftTrial, uuid.UUID(context.arguments["trial_id"]))
    if trial is not None and trial.revision == context.arguments["revision"]:
        trial.answer, trial.is_waiting = {"error": error}, False
        announce(session, topic_of("trial", trial.environment_id, trial.person_id))


def score(context: JobContext) -> None:
    environment_id = uuid.UUID(context.arguments["environment_id"])
    this = uuid.UUID(context.arguments["rollout_id"])
    try:
        with transaction() as session:
            draft = session.get_one(EnvironmentDraft, environment_id)
            manifest = read_manifest(draft.files.get(MANIFEST_PATH, ""))
            files, revision = with_generated(draft.files), draft.revision
            cluster, history, stored = _load_rollouts(session, environment_id, this)
        episodes = [
            read_episode(
                row, TaskSpec(row.Task.split, row.Task.index, row.Task.level, row.Task.seed, row.Task.arguments)
            )
            for row in stored.values()
        ]

        async def replay_all() -> list[ReplayedEpisode]:
            async with serve(content_hash(files), files, manifest) as server:
                return await replay_episodes(episodes, server=server, manifest=manifest, concurrency=CONCURRENCY)

        pairs = [(stored[each.episode.id], each) for each in run_async(replay_all())]
        of_history = [pair for pair in pairs if pair[0].id in history]
        answer: dict[str, object] = {
            "draft_revision": revision,
            "this": _comparison([pair for pair in pairs if pair[0].id == this]),
            "cluster": _comparison([pair for pair in pairs if pair[0].id in cluster]),
            "history": _comparison(of_history),
            "policies": _ranking(of_history),
            "most_of_history": MAX_HISTORY,
            "error": "",
        }
    except ManifestInvalid as error:
        answer = {"error": f"{MANIFEST_PATH}: {error}"}
    except (HostRefused, TooManyFailures) as error:
        answer = {"error": str(error)[:2000]}
    with transaction() as session:
        keep_answer(session, context.job_id, answer)


def give_up_scores(session: Session, context: JobContext, error: str) -> None:
    """The worker failed and will not try again."""
    keep_answer(session, context.job_id, {"error": error})


def _load_rollouts(
    session: Session, environment_id: uuid.UUID, rollout_id: uuid.UUID
) -> tuple[set[uuid.UUID], set[uuid.UUID], dict[uuid.UUID, Any]]:
    """Return the rollouts to score: in one cluster of a detector with this one, and the newest of runs and training.

    Also returns those of them that can be replayed, with their task and the name of their policy, by id.
    """
    own, other = aliased(Flag), aliased(Flag)
    of_environment = EnvironmentVersion.environment_id == environment_id
    cluster = (
        select(other.rollout_id)
        .join(own, (own.detector == other.detector) & (own.cluster == other.cluster))
        .join(Run, Run.id == other.run_id)
        .join(EnvironmentVersion, EnvironmentVersion.id == Run.version_id)
        .where(own.rollout_id == rollout_id, of_environment)
        .order_by(other.rollout_id.desc())
        .limit(MAX_CLUSTER)
    )
    history = (
        select(Rollout.id)
        .join(Run, Run.id == Rollout.run_id)
        .join(EnvironmentVersion, EnvironmentVersion.id == Run.version_id)
        .where(
            of_environment,
            Run.kind.in_((RunKind.TRAINING, RunKind.EVALUATION)),
            Rollout.phase.in_((Phase.TRAIN, Phase.EVALUATION, Phase.HELDOUT)),
            Rollout.status == RolloutStatus.COMPLETED,
        )
        .order_by(Run.id.desc(), Rollout.seq.desc())
        .limit(MAX_HISTORY)
    )
    clustered = {found for found in session.scalars(cluster) if found} - {rollout_id}
    newest = set(session.scalars(history))
    ids = {rollout_id, *clustered, *newest}
    statement = (
        select(Rollout.id, Rollout.reward, Rollout.stop_reason, Rollout.tokens_out, Rollout.is_truncated, Task)
        .add_columns(cast(Rollout.opening, Text).label("opening"), cast(Rollout.steps, Text).label("steps"))
        .add_columns(Rollout.seats)
        .add_columns(func.coalesce(Policy.name, "person").label("policy"))
        .join(Group, Group.id == Rollout.group_id)
        .join(Task, Task.id == Group.task_id)
        .join(Run, Run.id == Rollout.run_id)
        .outerjoin(Policy, Policy.id == Run.policy_id)
        .where(Rollout.id.in_(ids), Rollout.status == RolloutStatus.COMPLETED, Rollout.turns > 0)
    )
    return clustered, newest, {row.id: row for row in session.execute(statement)}


def _comparison(pairs: Sequence[tuple[Any, ReplayedEpisode]]) -> dict[str, object]:
    """Compare rewards of completed episodes; `elsewhere` counts diverged ones."""
    ended = [(old.reward, new.rollout.reward) for old, new in pairs if new.rollout.reward is not None]
    means = {"before": estimate_mean([old for old, _ in ended]), "after": estimate_mean([new for _, new in ended])}
    return {
        "count": len(pairs),
        "failed": len(pairs) - len(ended),
        "elsewhere": sum(bool(each.replies_left) or each.replies_ended for _, each in pairs),
        "lower": sum(new < old - TIE for old, new in ended),
        "higher": sum(new > old + TIE for old, new in ended),
        **{name: {"mean": e.mean, "low": e.low, "high": e.high} if e else None for name, e in means.items()},
    }


def _ranking(pairs: Sequence[tuple[Any, ReplayedEpisode]]) -> list[dict[str, object]]:
    """Rank policies by their new mean reward, with their place by the old one."""
    rewards: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for old, new in pairs:
        if new.rollout.reward is not None:
            rewards[old.policy].append((old.reward, new.rollout.reward))
    means = {policy: [fmean(values) for values in zip(*own, strict=True)] for policy, own in rewards.items()}
    before, after = (sorted(means, key=lambda policy: -means[policy][which]) for which in (0, 1))
    return [
        {
            "policy": policy,
            "count": len(rewards[policy]),
            "before": means[policy][0],
            "after": means[policy][1],
            "place_before": before.index(policy) + 1,
            "place_after": place,
        }
        for place, policy in enumerate(after, start=1)
    ]
