"""Altered replies of a run's best rollouts, graded by its own environment version."""

import uuid
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import select
from sqlalchemy.orm import undefer

from backend.core.session import transaction
from backend.domain.detectors.catalogue.metamorphic import SPEC, Altered, look_at_altered
from backend.domain.detectors.flags import FlagDraft
from backend.domain.detectors.run_view import RolloutRow, passes
from backend.domain.environments.manifest import Manifest
from backend.domain.rollouts.divergence import Recorded
from backend.domain.rollouts.rollout import TaskSpec
from backend.environments.tables import EnvironmentVersion
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.tables import Run
from backend.settings import get_settings
from workers.environments.client import EnvHost, EnvServer
from workers.rollouts.regrading import StoredEpisode, replay_episodes
from workers.storage.detectors import DetectorInput, stored_steps

CONCURRENCY = 8


async def look_at_altered_replies(judged: DetectorInput, most: int) -> list[FlagDraft]:
    """Of up to so many rollouts that succeeded."""
    settings = judged.settings[SPEC.id]
    rows = _successes(judged, most)
    if not settings.enabled or not rows:
        return []
    with transaction() as session:
        run = session.get_one(Run, judged.run_id)
        version = session.get_one(EnvironmentVersion, run.version_id, options=[undefer(EnvironmentVersion.files)])
    manifest = Manifest.model_validate(version.manifest)
    episodes = _episodes([row.id for row in rows])
    async with EnvHost(get_settings().envhost_address) as host:
        await host.prepare(version.content_hash, version.files)
        async with host.lease(version.content_hash, manifest.proctor.resources) as server:

            async def grade(altered: Sequence[Altered]) -> Sequence[float | None]:
                return await _graded(altered, episodes, server, manifest)

            return await look_at_altered(rows, manifest.proctor.agent.action, grade, settings.thresholds)


def _successes(judged: DetectorInput, most: int) -> list[RolloutRow]:
    found: list[RolloutRow] = []
    for _, rows in stored_steps(judged):
        found += [row for row in rows if passes(judged.context, row)]
        if len(found) >= most:
            break
    return found[:most]


def _episodes(ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, StoredEpisode]:
    statement = (
        select(Rollout.id, Rollout.steps, Rollout.tokens_out, Task)
        .join(Group, Group.id == Rollout.group_id)
        .join(Task, Task.id == Group.task_id)
        .where(Rollout.id.in_(ids))
    )
    with transaction() as session:
        return {
            row.id: StoredEpisode(row.id, _spec(row.Task), Recorded({}, row.steps), tokens_out=row.tokens_out)
            for row in session.execute(statement)
        }


def _spec(task: Task) -> TaskSpec:
    return TaskSpec(task.split, task.index, task.level, task.seed, task.arguments)


async def _graded(
    altered: Sequence[Altered], episodes: dict[uuid.UUID, StoredEpisode], server: EnvServer, manifest: Manifest
) -> list[float | None]:
    changed = []
    for each in altered:
        episode = episodes[each.row.id]
        *before, last = episode.recorded.steps
        steps = [*before, {**last, "reply": each.reply}]
        changed.append(replace(episode, id=uuid.uuid4(), recorded=Recorded({}, steps)))
    played = await replay_episodes(changed, server=server, manifest=manifest, concurrency=CONCURRENCY)
    rewards = {each.episode.id: each.rollout.reward for each in played}
    return [rewards.get(episode.id) for episode in changed]
