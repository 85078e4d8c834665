"""Grade altered replies of a run's best rollouts by its own environment version."""

import uuid
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import select
from sqlalchemy.orm import undefer

from backend.core.session import transaction
from backend.domain.detectors.catalogue.metamorphic import SPEC, Altered, scan_altered
from backend.domain.detectors.flags import FlagDraft
from backend.domain.detectors.run_view import RolloutRow, passes
from backend.domain.environments.manifest import Manifest
from backend.domain.rollouts.divergence import RecordedEpisode
from backend.domain.rollouts.rollout import TaskSpec
from backend.environments.tables import EnvironmentVersion
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.tables import Run
from workers.rollouts.regrading import StoredEpisode, replay_episodes
from workers.storage.detectors import DetectorInput, stored_steps
from workers.storage.env_host import open_env_host

CONCURRENCY = 8


async def scan_altered_replies(run_input: DetectorInput, most: int) -> list[FlagDraft]:
    """Flag successful rollouts, at most `most`, whose altered replies still earn the reward."""
    settings = run_input.settings[SPEC.id]
    rows: list[RolloutRow] = []
    for _, step_rows in stored_steps(run_input):
        rows += [row for row in step_rows if passes(run_input.context, row)]
        if len(rows) >= most:
            break
    rows = rows[:most]
    if not settings.enabled or not rows:
        return []
    with transaction() as session:
        run = session.get_one(Run, run_input.run_id)
        version = session.get_one(EnvironmentVersion, run.version_id, options=[undefer(EnvironmentVersion.files)])
        statement = (
            select(Rollout.id, Rollout.steps, Rollout.tokens_out, Task)
            .join(Group, Group.id == Rollout.group_id)
            .join(Task, Task.id == Group.task_id)
            .where(Rollout.id.in_([row.id for row in rows]))
        )
        episodes: dict[uuid.UUID, StoredEpisode] = {}
        for row in session.execute(statement):
            task = TaskSpec(row.Task.split, row.Task.index, row.Task.level, row.Task.seed, row.Task.arguments)
            recorded = RecordedEpisode({}, row.steps)
            episodes[row.id] = StoredEpisode(row.id, task, recorded, tokens_out=row.tokens_out)
    manifest = Manifest.model_validate(version.manifest)
    async with open_env_host() as host:
        await host.prepare(version.content_hash, version.files)
        async with host.lease(version.content_hash, manifest.proctor.resources) as server:

            async def grade(altered: Sequence[Altered]) -> list[float | None]:
                changed = []
                for each in altered:
                    episode = episodes[each.row.id]
                    *before, last = episode.recorded.steps
                    recorded = RecordedEpisode({}, [*before, {**last, "reply": each.reply}])
                    changed.append(replace(episode, id=uuid.uuid4(), recorded=recorded))
                replayed = await replay_episodes(changed, server=server, manifest=manifest, concurrency=CONCURRENCY)
                rewards = {each.episode.id: each.rollout.reward for each in replayed}
                return [rewards.get(episode.id) for episode in changed]

            return await scan_altered(rows, manifest.proctor.agent.action, grade, settings.thresholds)
