"""Infrastructure failures: null reward, error kind, retries, siblings that continue, a circuit breaker, quick stops."""

import asyncio
import time

import pytest

from backend.domain.errors import PolicyError
from backend.domain.rollouts.rollout import Rollout
from backend.domain.vocabulary import ErrorKind, RolloutStatus, StopReason
from tests.rollouts.world import Replies, Trouble, World, make_manifest, plans, play
from workers.policies.base import EpisodeStart
from workers.policies.scripted import ScriptedPolicy
from workers.rollouts import engine
from workers.rollouts.engine import TooManyFailures


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "RETRY_SECONDS", 0.01)


async def test_a_failed_rollout_has_no_reward_and_its_siblings_continue() -> None:
    world = World(Trouble(failing_resets={2: 99}))
    rollouts = await play(world, ScriptedPolicy("gold"), plans(6, members=2))
    failed = [rollout for rollout in rollouts if rollout.status is RolloutStatus.FAILED]
    assert [(rollout.group, rollout.member) for rollout in failed] == [(2, 0), (2, 1)]
    assert all(rollout.reward is None and not rollout.columns for rollout in failed)
    assert failed[0].error_kind is ErrorKind.ENVIRONMENT
    assert failed[0].error_message == "reset: the dice are lost"
    assert sum(rollout.is_completed for rollout in rollouts) == 10


async def test_it_is_tried_again_on_a_fresh_session_until_the_last_attempt() -> None:
    world = World(Trouble(failing_resets={0: 2, 1: 99}))
    recovered, given_up = await play(world, ScriptedPolicy("gold"), plans(2))
    assert (recovered.status, recovered.attempts) == (RolloutStatus.COMPLETED, 3)
    assert (given_up.status, given_up.attempts) == (RolloutStatus.FAILED, 3)
    assert world.opened == 6


async def test_an_episode_over_its_time_is_a_crossed_limit_and_is_not_tried_again() -> None:
    manifest = make_manifest(episode={"episode_timeout_seconds": 0.2, "step_timeout_seconds": 9})
    world = World(Trouble(hanging_steps={1}))
    played, hung = await play(world, ScriptedPolicy("gold"), plans(2), manifest)
    assert played.is_completed
    assert (hung.error_kind, hung.stop_reason, hung.attempts) == (ErrorKind.LIMIT, StopReason.EPISODE_TIMEOUT, 1)
    assert hung.error_message == "the episode took longer than 0.2 s (waiting for the environment to step)"
    assert world.playing == 0


async def test_a_silent_policy_meets_the_same_deadline() -> None:
    manifest = make_manifest(episode={"episode_timeout_seconds": 0.1})
    [hung] = await play(World(), Replies("", seconds=30), plans(1), manifest)
    assert hung.error_message == "the episode took longer than 0.1 s (waiting for the policy)"


async def test_rewards_that_the_manifest_does_not_know_are_a_failure_not_a_zero() -> None:
    [rollout] = await play(World(Trouble(silent={0})), ScriptedPolicy("gold"), plans(1))
    assert rollout.reward is None
    assert "the manifest declares win; the environment sent nothing" in str(rollout.error_message)
    assert rollout.attempts == 1


async def test_an_environment_that_is_over_at_reset_fails() -> None:
    [rollout] = await play(World(Trouble(over_at_reset={0})), ScriptedPolicy("gold"), plans(1))
    assert "the episode ended at its reset" in str(rollout.error_message)


async def test_a_template_that_does_not_render_is_the_environments_fault() -> None:
    manifest = make_manifest(agent={"observation": "{{ board }}"})
    [rollout] = await play(World(), ScriptedPolicy("gold"), plans(1), manifest)
    assert rollout.error_kind is ErrorKind.ENVIRONMENT
    assert "'board' is undefined" in str(rollout.error_message)


async def test_a_script_that_is_not_offered_is_the_policys_fault() -> None:
    [rollout] = await play(World(), ScriptedPolicy("teacher"), plans(1))
    assert (rollout.error_kind, rollout.attempts) == (ErrorKind.POLICY, 1)
    assert rollout.error_message == "the environment's state offers no script 'teacher'; it offers: gold"


async def test_a_policy_that_raises_anything_fails_its_rollout_only() -> None:
    class Moody(Replies):
        async def begin(self, start: EpisodeStart):  # type: ignore[no-untyped-def]
            if start.task.index == 0:
                raise ZeroDivisionError("no mood")
            return await super().begin(start)

    failed, played = await play(World(), Moody("<move>2</move>"), plans(2))
    assert failed.error_message == "policy: ZeroDivisionError: no mood"
    assert played.is_completed


async def test_most_rollouts_failing_opens_the_circuit_breaker() -> None:
    class Dead(Replies):
        async def begin(self, start: EpisodeStart):  # type: ignore[no-untyped-def]
            raise PolicyError("the endpoint cannot be reached")

    with pytest.raises(TooManyFailures, match=r"16 of the last 16 rollouts failed \(100%\)\..*cannot be reached"):
        await play(World(), Dead(), plans(500), max_attempts=1)


async def test_some_failures_do_not_open_it() -> None:
    world = World(Trouble(failing_resets=dict.fromkeys(range(0, 60, 3), 99)))
    rollouts = await play(world, ScriptedPolicy("gold"), plans(60))
    assert sum(not rollout.is_completed for rollout in rollouts) == 20


async def test_a_stop_is_obeyed_at_once_also_in_the_middle_of_episodes() -> None:
    world = World(Trouble(step_seconds=0.25))
    policy = Replies("no", seconds=0.5)
    found: list[Rollout] = []
    began = time.monotonic()
    await play(world, policy, plans(100), on_rollout=found.append, should_stop=lambda: time.monotonic() - began > 0.1)
    assert time.monotonic() - began < 0.6
    assert found == []
    assert world.playing == 0
    assert policy.closed == len(policy.starts)


async def test_an_error_where_rollouts_are_taken_ends_everything() -> None:
    def refuse(rollout: Rollout) -> None:
        raise OSError("the disk is full")

    world = World()
    with pytest.raises(OSError, match="disk is full"):
        await play(world, ScriptedPolicy("gold"), plans(100), on_rollout=refuse)
    assert world.playing == 0


async def test_a_slow_receiver_holds_the_episodes_back() -> None:
    world = World()
    waiting = 0
    most = 0

    async def slowly(rollout: Rollout) -> None:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        await asyncio.sleep(0.005)
        waiting -= 1

    await play(world, ScriptedPolicy("gold"), plans(40), on_rollout=slowly, concurrency=4)
    assert most <= 4
    assert world.opened == 40


async def test_no_more_episodes_than_the_server_allows() -> None:
    world = World(sessions=3)
    await play(world, ScriptedPolicy("gold"), plans(20), concurrency=16)
    assert world.most_playing == 3
