"""The same seed gives the same play, whatever runs concurrently; other members and steps differ."""

from backend.domain.rollouts.rollout import Rollout, task_of
from backend.domain.vocabulary import Split
from tests.rollouts.world import World, make_manifest, plans, play
from workers.policies.scripted import ScriptedPolicy
from workers.rollouts.engine import policy_seed


def _replies(rollouts: list[Rollout]) -> list[list[str]]:
    return [[step.reply for step in rollout.steps] for rollout in rollouts]


async def test_concurrency_changes_nothing() -> None:
    groups = plans(20, members=3)
    alone = await play(World(), ScriptedPolicy("random"), groups, concurrency=1)
    together = await play(World(), ScriptedPolicy("random"), groups, concurrency=32)
    assert _replies(alone) == _replies(together)


async def test_another_seed_plays_differently() -> None:
    groups = plans(20)
    first = await play(World(), ScriptedPolicy("random"), groups, seed=1)
    second = await play(World(), ScriptedPolicy("random"), groups, seed=2)
    assert _replies(first) != _replies(second)


async def test_members_share_the_environments_seed_but_not_the_policys() -> None:
    world = World()
    rollouts = await play(world, ScriptedPolicy("random"), plans(1, members=12))
    assert len({str(reset) for reset in world.resets}) == 1
    assert len({str(replies) for replies in _replies(rollouts)}) > 1


def test_seeds_are_stable_and_distinct() -> None:
    task = task_of(make_manifest(), Split.HELDOUT, 5)
    assert policy_seed(7, task, 0) == 5707228083655442430
    seeds = {policy_seed(seed, task, member, step) for seed in range(3) for member in range(8) for step in (None, 1, 2)}
    assert len(seeds) == 72
    assert all(0 <= seed < 2**63 for seed in seeds)
