"""Episodes that scripts play through the engine on the env host, and runs to store them in."""

from backend.core.session import transaction
from backend.domain.environments.manifest import Manifest
from backend.domain.environments.packages import content_hash
from backend.domain.rollouts.rollout import Rollout, task_of
from backend.domain.vocabulary import Phase, RunKind, RunStatus, Split
from backend.environments.tables import EnvironmentVersion
from backend.runs.tables import Run
from backend.settings import get_settings
from workers.environments.client import EnvHost
from workers.environments.sessions import EnvServer
from workers.policies.base import Policy
from workers.rollouts.engine import GroupPlan, play_groups


async def play_version(version: EnvironmentVersion, policy: Policy, count: int) -> list[Rollout]:
    """The first training tasks, one rollout of each."""
    manifest, package = Manifest.model_validate(version.manifest), content_hash(version.files)
    async with EnvHost(get_settings().envhost_address) as host:
        await host.prepare(package, version.files)
        async with host.lease(package, manifest.proctor.resources) as server:
            return await play(server, manifest, policy, count)


async def play(
    server: EnvServer,
    manifest: Manifest,
    policy: Policy,
    count: int,
    *,
    first: int = 0,
    seed: int = 0,
    concurrency: int = 16,
) -> list[Rollout]:
    """Training tasks from the `first` on, one rollout of each."""
    played: list[Rollout] = []
    await play_groups(
        [GroupPlan(task_of(manifest, Split.TRAIN, first + index), index, (0,)) for index in range(count)],
        server=server,
        policy=policy,
        manifest=manifest,
        phase=Phase.EVALUATION,
        seed=seed,
        concurrency=concurrency,
        on_rollout=played.append,
    )
    return played


def completed_run(version: EnvironmentVersion, kind: RunKind) -> Run:
    """An empty one."""
    manifest = Manifest.model_validate(version.manifest)
    run = Run(
        kind=kind,
        status=RunStatus.COMPLETED,
        name="benchmark",
        version_id=version.id,
        columns=manifest.column_names,
        weights=[column.weight for column in manifest.columns],
    )
    with transaction() as session:
        session.add(run)
    return run
