"""Groups whose members are scored together are in flight together, and count whole or not at all."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from backend.domain.errors import PolicyError
from backend.domain.vocabulary import ErrorKind, RolloutStatus
from tests.rollouts.world import Replies, World, WorldSession, make_manifest, plans, play
from workers.environments.client import Observation
from workers.policies.base import EpisodeStart
from workers.rollouts.engine import GroupPlan

GROUPED = {"tasks": {"grouped": True}}
WIN = "<move>2</move>"


@dataclass(slots=True)
class Siblings(World):
    """Answers a member's last step when all members of its group have taken theirs."""

    ended: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    moved: asyncio.Condition = field(default_factory=asyncio.Condition)

    @asynccontextmanager
    async def sessions_together(self, count: int) -> AsyncIterator[list["Sibling"]]:
        async with AsyncExitStack() as stack:
            for _ in range(count):
                await stack.enter_async_context(self.session())
            yield [Sibling(self) for _ in range(count)]


class Sibling(WorldSession):
    world: Siblings

    async def reset(self, arguments: Mapping[str, Any], *, timeout: float) -> Observation:
        self.name, self.size = arguments["group"], arguments["group_size"]
        return await super().reset(arguments, timeout=timeout)

    async def step(self, action: Mapping[str, Any], *, timeout: float) -> Observation:
        observation = await super().step(action, timeout=timeout)
        if observation.done:
            async with self.world.moved:
                self.world.ended[self.name] += 1
                self.world.moved.notify_all()
                await self.world.moved.wait_for(lambda: self.world.ended[self.name] >= self.size)
        return observation


class Stumbling(Replies):
    """Fails as one member of one task, the given number of times."""

    def __init__(self, task: int, member: int, times: int) -> None:
        super().__init__(WIN)
        self.task, self.member, self.times = task, member, times

    async def begin(self, start: EpisodeStart) -> Any:
        if (start.task.index, start.member) == (self.task, self.member) and self.times > 0:
            self.times -= 1
            raise PolicyError("no answer")
        return await super().begin(start)


async def test_members_are_reset_together_under_a_name():
    world = Siblings()
    rollouts = await play(world, Replies(WIN), plans(5, 3), make_manifest(**GROUPED), concurrency=7)
    assert [rollout.status for rollout in rollouts] == [RolloutStatus.COMPLETED] * 15
    assert world.most_playing == 6  # two whole groups
    names = defaultdict(list)
    for reset in world.resets:
        names[reset["group"]].append((reset["index"], reset["group_size"]))
    assert sorted(names.values()) == [[(index, 3)] * 3 for index in range(5)]
    assert all(rollout.task.arguments == {} for rollout in rollouts)


async def test_a_waiting_member_has_the_time_of_its_siblings():
    slow = Replies(WIN, seconds=0.4)  # the steps of the manifest have 0.3 s
    rollouts = await play(Siblings(), slow, plans(1, 3), make_manifest(**GROUPED))
    assert all(rollout.is_completed for rollout in rollouts)


async def test_a_group_is_played_again_when_one_member_fails():
    rollouts = await play(Siblings(), Stumbling(0, 1, times=1), plans(2, 3), make_manifest(**GROUPED))
    assert all(rollout.is_completed for rollout in rollouts)
    assert [rollout.attempts for rollout in rollouts] == [2, 2, 2, 1, 1, 1]


async def test_a_member_that_keeps_failing_takes_its_group_and_no_other():
    rollouts = await play(Siblings(), Stumbling(0, 1, times=9), plans(2, 3), make_manifest(**GROUPED))
    assert [rollout.status for rollout in rollouts] == [RolloutStatus.FAILED] * 3 + [RolloutStatus.COMPLETED] * 3
    assert {rollout.error_kind for rollout in rollouts[:3]} == {ErrorKind.POLICY}
    assert [rollout.reward for rollout in rollouts[:3]] == [None] * 3
    assert "no answer" in str(rollouts[1].error_message)
    assert str(rollouts[0].error_message).startswith("another member of its group failed")


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_a_group_that_never_fits_shows_the_next_step(concurrency: int):
    rollouts = await play(Siblings(), Replies(WIN), plans(2, 3), make_manifest(**GROUPED), concurrency=concurrency)
    assert {rollout.error_kind for rollout in rollouts} == {ErrorKind.LIMIT}
    assert all("raise the concurrency or make the groups smaller" in str(rollout.error_message) for rollout in rollouts)


async def test_missing_members_are_played_with_their_siblings_and_alone_handed_over():
    world = Siblings()
    [plan] = plans(1, 3)
    rollouts = await play(world, Replies(WIN), [GroupPlan(plan.task, 0, (1,), size=3)], make_manifest(**GROUPED))
    assert [(rollout.member, rollout.is_completed) for rollout in rollouts] == [(1, True)]
    assert [reset["group_size"] for reset in world.resets] == [3, 3, 3]


async def test_a_stop_hands_over_whole_groups_as_they_are():
    slow = Replies(WIN, seconds=5)
    began = time.monotonic()
    rollouts = await play(
        Siblings(),
        slow,
        plans(1, 3),
        make_manifest(**GROUPED),
        keep_cancelled=True,
        should_stop=lambda: time.monotonic() - began > 0.2,
    )
    assert [rollout.status for rollout in rollouts] == [RolloutStatus.CANCELLED] * 3
