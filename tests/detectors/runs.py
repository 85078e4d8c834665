"""Runs for detectors: every rollout was really played by a script; a run mixes scripts as a policy would change."""

import math
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from backend.domain.detectors.run_view import EnvironmentContext, RolloutRow, row_of
from backend.domain.detectors.spec import FlagDraft
from backend.domain.environments.manifest import read_manifest
from backend.domain.rollouts.rollout import Rollout, task_of
from backend.domain.vocabulary import Phase, Split
from backend.environments.library import load_package
from tests.library.conftest import Serve
from workers.detectors.scanner import RunScanner
from workers.policies.scripted import ScriptedPolicy
from workers.rollouts.engine import GroupPlan, RolloutPool

Pools = Mapping[str, Sequence[RolloutRow]]
Mixture = Callable[[int], Mapping[str, float]]
"""By step, how often the policy plays like which script."""

GROUPS, MEMBERS = 12, 8


_pools: dict[tuple[str, ...], Pools] = {}


async def play_pools(serve: Serve, name: str, scripts: Sequence[str], episodes: int = 200) -> Pools:
    """Played once a test process: the episodes of a script are the same every time."""
    if (name, *scripts) not in _pools:
        _pools[name, *scripts] = await _play(serve, name, scripts, episodes)
    return _pools[name, *scripts]


async def _play(serve: Serve, name: str, scripts: Sequence[str], episodes: int) -> Pools:
    files = load_package(name)
    manifest = read_manifest(files["openenv.yaml"])
    pools = {}
    async with serve(files) as server:
        for script in scripts:
            played: list[Rollout] = []
            await RolloutPool(
                [GroupPlan(task_of(manifest, Split.TRAIN, index), index, (0,)) for index in range(episodes)],
                server=server,
                policy=ScriptedPolicy(script),
                manifest=manifest,
                phase=Phase.TRAIN,
                seed=0,
                concurrency=16,
                on_rollout=played.append,
            ).play()
            played.sort(key=lambda rollout: rollout.group)  # episodes end in any order
            pools[script] = [row for rollout in played if (row := row_of(uuid.uuid4(), rollout))]
    return pools


def step_of(pools: Pools, weights: Mapping[str, float], step: int, chance: random.Random) -> list[RolloutRow]:
    rows = []
    for number in range(GROUPS):
        for script in chance.choices(list(weights), list(weights.values()), k=MEMBERS):
            row = chance.choice(pools[script])
            new_id = uuid.UUID(int=chance.getrandbits(128))
            rows.append(replace(row, id=new_id, group=f"{step}/{number}", task=f"train/{step * GROUPS + number}"))
    return rows


def watch_run(pools: Pools, mixture: Mixture, *, steps: int = 80, seed: int = 0) -> list[FlagDraft]:
    chance = random.Random(seed)
    scanner = RunScanner(EnvironmentContext(tuple(next(iter(pools.values()))[0].columns)))
    return [
        draft
        for step in range(1, steps + 1)
        for draft in scanner.scan(step, step_of(pools, mixture(step), step, chance))
    ]


def turning(before: str, after: str, *, middle: float = 40, width: float = 6, share: float = 0.9) -> Mixture:
    """From one script to another along an S-shaped curve."""
    return partial(_turning, before, after, middle, width, share)


def _turning(before: str, after: str, middle: float, width: float, share: float, step: int) -> Mapping[str, float]:
    turned = share / (1 + math.exp(-(step - middle) / width))
    return {before: 1 - turned, after: turned}
