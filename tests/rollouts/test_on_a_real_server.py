"""The engine on jailed servers of a real env host: what goes wrong there ends where it should."""

from typing import Any

import pytest

from backend.domain.environments.manifest import Manifest, read_manifest
from backend.domain.rollouts.rollout import Rollout, task_of
from backend.domain.vocabulary import ErrorKind, Phase, RolloutStatus, Split, StopReason
from backend.environments.library import load_package
from tests.envhost_fixture import package_files, prepared
from tests.rollouts.world import Replies
from workers.environments.client import EnvHost
from workers.policies.base import Policy
from workers.policies.scripted import ScriptedPolicy
from workers.rollouts.engine import GroupPlan, RolloutPool


async def _play(
    host: EnvHost, files: dict[str, str], policy: Policy, *, tasks: int = 4, members: int = 1, **proctor: Any
) -> list[Rollout]:
    manifest = read_manifest(files["openenv.yaml"])
    manifest = Manifest.model_validate(
        {**manifest.model_dump(), "proctor": {**manifest.proctor.model_dump(), **proctor}}
    )
    groups = [GroupPlan(task_of(manifest, Split.HELDOUT, i), i, tuple(range(members))) for i in range(tasks)]
    found: list[Rollout] = []
    async with host.lease(await prepared(host, files), manifest.proctor.resources) as server:
        await RolloutPool(
            groups,
            server=server,
            policy=policy,
            manifest=manifest,
            phase=Phase.EVALUATION,
            seed=1,
            concurrency=8,
            on_rollout=found.append,
            max_attempts=2,
        ).play()
    return sorted(found, key=lambda rollout: (rollout.group, rollout.member))


async def test_a_whole_game_is_the_same_twice(env_host: EnvHost) -> None:
    files = load_package("tictactoe")
    first = await _play(env_host, files, ScriptedPolicy("random"), tasks=6, members=4)
    second = await _play(env_host, files, ScriptedPolicy("random"), tasks=6, members=4)
    assert [(r.reward, r.columns, r.messages) for r in first] == [(r.reward, r.columns, r.messages) for r in second]
    assert all(rollout.is_completed for rollout in first)
    assert len({rollout.reward for rollout in first}) > 1


async def test_gold_plays_well(env_host: EnvHost) -> None:
    rollouts = await _play(env_host, load_package("tictactoe"), ScriptedPolicy("gold"), tasks=12)
    assert sum(rollout.columns["win"] for rollout in rollouts) / 12 > 0.7
    assert {rollout.columns["format"] for rollout in rollouts} == {1.0}
    assert {rollout.stop_reason for rollout in rollouts} == {StopReason.DONE}


async def test_a_refused_action_is_told_to_the_policy_and_the_episode_continues(env_host: EnvHost) -> None:
    policy = Replies('{"amount": "many"}', '{"amount": 99999999999999999999}', '{"amount": 3}')
    agent = {"action": {"format": "json"}}
    [rollout] = await _play(env_host, package_files(), policy, tasks=1, agent=agent)
    assert rollout.status is RolloutStatus.COMPLETED
    assert rollout.stop_reason is StopReason.DONE
    assert "amount: Input should be a valid integer" in str(rollout.steps[0].note)
    assert rollout.steps[1].action is None
    assert rollout.metrics["format"] == 1 / 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("in_step", "kind", "message"),
    [
        ("raise RuntimeError('the board is on fire')", ErrorKind.ENVIRONMENT, "the board is on fire"),
        ("observation.metadata['rewards']['gain'] = float('nan')", ErrorKind.ENVIRONMENT, "NaN and infinity"),
        ("observation.metadata['rewards']['gain'] = 'much'", ErrorKind.ENVIRONMENT, "not a finite number"),
        ("observation.metadata['rewards'] = {'other': 1.0}", ErrorKind.ENVIRONMENT, "the manifest declares gain, tidy"),
        ("import os; os._exit(3)", ErrorKind.SANDBOX, "the server"),
        ("import time; time.sleep(30)", ErrorKind.LIMIT, "no answer within"),
        ("observation.text = 'x' * 9_000_000", ErrorKind.LIMIT, "larger than"),
    ],
    ids=["raises", "nan", "text", "unknown-columns", "exits", "hangs", "floods"],
)
async def test_a_broken_step_gives_no_reward(env_host: EnvHost, in_step: str, kind: ErrorKind, message: str) -> None:
    limits = {"max_turns": 4, "step_timeout_seconds": 1.0}
    [rollout] = await _play(env_host, package_files(in_step=in_step), Replies("3"), tasks=1, episode=limits)
    assert (rollout.status, rollout.reward, rollout.columns) == (RolloutStatus.FAILED, None, {})
    assert rollout.error_kind is kind
    assert message in str(rollout.error_message)


async def test_a_huge_observation_is_played_and_cut_where_it_is_stored(env_host: EnvHost) -> None:
    files = package_files(in_step="observation.text = 'x' * 1_000_000")
    [rollout] = await _play(env_host, files, Replies("3"), tasks=1)
    assert rollout.is_completed
    assert len(str(rollout.steps[0].observation)) < 70_000


async def test_an_episode_that_never_ends_is_ended(env_host: EnvHost) -> None:
    files = package_files(in_step="observation.done = False")
    [rollout] = await _play(env_host, files, Replies("1"), tasks=1, episode={"max_turns": 20})
    assert (rollout.stop_reason, len(rollout.steps)) == (StopReason.MAX_TURNS, 20)
    assert rollout.columns == {"gain": 20.0, "tidy": 10.0}
