"""Whole episodes on a real server, as the engine plays them."""

from backend.domain.environments.manifest import read_manifest
from backend.domain.rollouts.rollout import HELDOUT_SEED_BASE, Rollout, TaskSpec
from backend.domain.vocabulary import Phase, Split
from backend.environments.library import load_package
from tests.library.conftest import Serve
from workers.environments.client import EnvSession
from workers.policies.scripted import ScriptedPolicy
from workers.rollouts.engine import GroupPlan, RolloutPool


def heldout(level: int, index: int = 0) -> dict[str, object]:
    """Reset arguments of a held-out task."""
    return {"seed": HELDOUT_SEED_BASE + index, "split": "heldout", "level": level, "index": index}


async def play(serve: Serve, package: str, script: str, *, level: int = 0, tasks: int = 12) -> list[Rollout]:
    """Rollouts of one script on the first held-out seeds, all on one level."""
    files = load_package(package)
    rollouts: list[Rollout] = []
    specs = [TaskSpec(Split.HELDOUT, n, level, HELDOUT_SEED_BASE + n) for n in range(tasks)]
    async with serve(files) as server:
        await RolloutPool(
            [GroupPlan(task, number, (0,)) for number, task in enumerate(specs)],
            server=server,
            policy=ScriptedPolicy(script),
            manifest=read_manifest(files["openenv.yaml"]),
            phase=Phase.CHECK,
            seed=0,
            concurrency=8,
            on_rollout=rollouts.append,
        ).play()
    assert all(rollout.is_completed for rollout in rollouts), [r.error_message for r in rollouts]
    return sorted(rollouts, key=lambda rollout: rollout.group)


async def rewards_of(serve: Serve, package: str, script: str, *, level: int = 0, tasks: int = 12) -> list[float]:
    return [rollout.reward or 0.0 for rollout in await play(serve, package, script, level=level, tasks=tasks)]


async def step(session: EnvSession, **action: object):
    return await session.step(dict(action), timeout=10)
