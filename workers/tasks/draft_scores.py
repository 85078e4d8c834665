"""The job `rescoring.draft`: what a draft's reward gives stored episodes, before anything is published.

The draft as it is saved plays the stored replies of a rollout, of those that show the same pattern, and of the newest
of the environment's history. Nothing becomes a rollout; the answer stays in the job's row.
"""

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from sqlalchemy import Text, cast, select
from sqlalchemy.orm import Session, aliased

from backend.core.queue import keep_answer
from backend.core.session import transaction
from backend.detectors.tables import Flag
from backend.domain.environments.manifest import Manifest, ManifestInvalid, read_manifest
from backend.domain.environments.packages import MANIFEST_PATH, content_hash
from backend.domain.rollouts.divergence import RecordedEpisode
from backend.domain.rollouts.rollout import TaskSpec
from backend.domain.statistics import TIE, estimate_mean
from backend.domain.vocabulary import Phase, RolloutStatus, RunKind
from backend.environments.scaffold import with_generated
from backend.environments.tables import EnvironmentDraft, EnvironmentVersion
from backend.policies.tables import Policy
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.tables import Run
from workers.environments.client import HostRefused
from workers.rollouts.engine import TooManyFailures
from workers.rollouts.regrading import ReplayedEpisode, StoredEpisode, replay_episodes
from workers.storage.env_host import open_env_host
from workers.tasks.event_loops import run_async
from workers.tasks.registry import JobContext

MOST_OF_CLUSTER, MOST_OF_HISTORY = 500, 3000
CONCURRENCY = 64
_KINDS = (RunKind.TRAINING, RunKind.EVALUATION)
_PHASES = (Phase.TRAIN, Phase.EVALUATION, Phase.HELDOUT)


@dataclass(frozen=True, slots=True)
class _Stored:
    """A stored episode with what it earned, and whose it was."""

    episode: StoredEpisode
    reward: float
    policy: str


@dataclass(slots=True)
class _Question:
    manifest: Manifest
    files: dict[str, str] = field(repr=False)
    revision: int
    this: uuid.UUID
    cluster: set[uuid.UUID]
    history: set[uuid.UUID]
    stored: dict[uuid.UUID, _Stored] = field(repr=False)


def run(context: JobContext) -> None:
    rollout_id = uuid.UUID(context.arguments["rollout_id"])
    try:
        with transaction() as session:
            question = _read(session, uuid.UUID(context.arguments["environment_id"]), rollout_id)
        answer = run_async(_score(question))
    except ManifestInvalid as error:
        answer = {"error": f"{MANIFEST_PATH}: {error}"}
    except (HostRefused, TooManyFailures) as error:
        answer = {"error": str(error)[:2000]}
    with transaction() as session:
        keep_answer(session, context.job_id, answer)


def give_up(session: Session, context: JobContext, error: str) -> None:
    """The worker failed and will not try again."""
    keep_answer(session, context.job_id, {"error": error})


def _read(session: Session, environment_id: uuid.UUID, rollout_id: uuid.UUID) -> _Question:
    draft = session.get_one(EnvironmentDraft, environment_id)
    cluster = _cluster(session, environment_id, rollout_id)
    history = _history(session, environment_id)
    return _Question(
        manifest=read_manifest(draft.files.get(MANIFEST_PATH, "")),
        files=with_generated(draft.files),
        revision=draft.revision,
        this=rollout_id,
        cluster=cluster,
        history=history,
        stored=_stored(session, cluster | history | {rollout_id}),
    )


def _cluster(session: Session, environment_id: uuid.UUID, rollout_id: uuid.UUID) -> set[uuid.UUID]:
    """Rollouts of the environment that a detector put beside this one."""
    own, other = aliased(Flag), aliased(Flag)
    statement = (
        select(other.rollout_id)
        .join(own, (own.detector == other.detector) & (own.cluster == other.cluster))
        .join(Run, Run.id == other.run_id)
        .join(EnvironmentVersion, EnvironmentVersion.id == Run.version_id)
        .where(own.rollout_id == rollout_id, EnvironmentVersion.environment_id == environment_id)
        .order_by(other.rollout_id.desc())
        .limit(MOST_OF_CLUSTER)
    )
    return {found for found in session.scalars(statement) if found} - {rollout_id}


def _history(session: Session, environment_id: uuid.UUID) -> set[uuid.UUID]:
    """The newest rollouts of its training runs and evaluations."""
    statement = (
        select(Rollout.id)
        .join(Run, Run.id == Rollout.run_id)
        .join(EnvironmentVersion, EnvironmentVersion.id == Run.version_id)
        .where(
            EnvironmentVersion.environment_id == environment_id,
            Run.kind.in_(_KINDS),
            Rollout.phase.in_(_PHASES),
            Rollout.status == RolloutStatus.COMPLETED,
        )
        .order_by(Run.id.desc(), Rollout.seq.desc())
        .limit(MOST_OF_HISTORY)
    )
    return set(session.scalars(statement))


def _stored(session: Session, ids: Collection[uuid.UUID]) -> dict[uuid.UUID, _Stored]:
    statement = (
        select(
            Rollout.id,
            Rollout.reward,
            cast(Rollout.opening, Text).label("opening"),
            cast(Rollout.steps, Text).label("steps"),
            Rollout.stop_reason,
            Rollout.tokens_out,
            Rollout.is_truncated,
            Policy.name.label("policy"),
            Task,
        )
        .join(Group, Group.id == Rollout.group_id)
        .join(Task, Task.id == Group.task_id)
        .join(Run, Run.id == Rollout.run_id)
        .outerjoin(Policy, Policy.id == Run.policy_id)
        .where(Rollout.id.in_(ids), Rollout.status == RolloutStatus.COMPLETED, Rollout.turns > 0)
    )
    return {
        row.id: _Stored(
            StoredEpisode(
                id=row.id,
                task=TaskSpec(row.Task.split, row.Task.index, row.Task.level, row.Task.seed, row.Task.arguments),
                recorded=RecordedEpisode(orjson.loads(row.opening), orjson.loads(row.steps)),
                stop_reason=row.stop_reason,
                tokens_out=row.tokens_out,
                is_truncated=row.is_truncated,
            ),
            row.reward,
            row.policy or "somebody",
        )
        for row in session.execute(statement)
    }


async def _score(question: _Question) -> dict[str, Any]:
    digest = content_hash(question.files)
    async with open_env_host() as host:
        await host.prepare(digest, question.files)
        async with host.lease(digest, question.manifest.proctor.resources) as server:
            played = await replay_episodes(
                [each.episode for each in question.stored.values()],
                server=server,
                manifest=question.manifest,
                concurrency=CONCURRENCY,
            )
    return await asyncio.to_thread(_answer, question, played)


def _answer(question: _Question, played: Sequence[ReplayedEpisode]) -> dict[str, Any]:
    after = {each.episode.id: each for each in played}
    return {
        "draft_revision": question.revision,
        "this": _part(question.stored, after, {question.this}),
        "cluster": _part(question.stored, after, question.cluster),
        "history": _part(question.stored, after, question.history),
        "policies": _ranking(question.stored, after, question.history),
        "most_of_history": MOST_OF_HISTORY,
        "error": "",
    }


def _part(
    stored: Mapping[uuid.UUID, _Stored], after: Mapping[uuid.UUID, ReplayedEpisode], ids: Collection[uuid.UUID]
) -> dict[str, Any]:
    """Means before and after over those that came to their end, and how many went another way than they had."""
    pairs = [(stored[each].reward, after[each]) for each in ids if each in after and each in stored]
    ended = [(before, found.rollout.reward) for before, found in pairs if found.rollout.reward is not None]
    return {
        "count": len(pairs),
        "failed": len(pairs) - len(ended),
        "elsewhere": sum(bool(found.replies_left) or found.replies_ended for _, found in pairs),
        "lower": sum(new < old - TIE for old, new in ended),
        "higher": sum(new > old + TIE for old, new in ended),
        "before": _mean([old for old, _ in ended]),
        "after": _mean([new for _, new in ended]),
    }


def _ranking(
    stored: Mapping[uuid.UUID, _Stored], after: Mapping[uuid.UUID, ReplayedEpisode], ids: Collection[uuid.UUID]
) -> list[dict[str, Any]]:
    """Policies in the order of the new means, each with its place in the old order."""
    earned: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for each in ids:
        if each in after and each in stored and (new := after[each].rollout.reward) is not None:
            earned[stored[each].policy].append((stored[each].reward, new))
    rows: list[dict[str, Any]] = [
        {
            "policy": policy,
            "count": len(pairs),
            "before": sum(old for old, _ in pairs) / len(pairs),
            "after": sum(new for _, new in pairs) / len(pairs),
        }
        for policy, pairs in earned.items()
    ]
    for key in ("before", "after"):
        for place, row in enumerate(sorted(rows, key=lambda row: -row[key]), start=1):
            row[f"place_{key}"] = place
    return sorted(rows, key=lambda row: row["place_after"])


def _mean(values: Sequence[float]) -> dict[str, float] | None:
    found = estimate_mean(values)
    return {"mean": found.mean, "low": found.low, "high": found.high} if found else None
