"""Rewards that compare siblings, played by the engine itself, are row by row those of the library's own evaluation."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from backend.domain.environments.import_report import ImportReport
from backend.domain.environments.manifest import Manifest, read_manifest
from backend.domain.environments.packages import MANIFEST_PATH
from backend.domain.environments.proposals import propose
from backend.domain.errors import PolicyError
from backend.domain.rollouts.rollout import Rollout, task_of
from backend.domain.vocabulary import Phase, RolloutStatus, Split
from backend.environments.import_package import write_manifest
from tests.envhost_fixture import HostProcess, prepared_once
from tests.environments.importing.packages import v0_zoo
from tests.environments.importing.test_verifiers_v0 import ROWS, _replies, by_the_library
from workers.environments.client import EnvHost, EnvServer
from workers.environments.packages import resources_of
from workers.policies.base import EpisodeStart, Reply, Turn
from workers.rollouts.engine import GroupPlan, RolloutPool

SIZE = 3
HELD = max(1, ROWS // 5)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Told:
    """Says to each row, as each member, what the library's own evaluation hears too."""

    def __init__(self, silent: tuple[int, int] | None = None) -> None:
        self.silent = silent
        """The row and member that do not answer."""

    async def begin(self, start: EpisodeStart) -> Any:
        row = start.task.index + (ROWS - HELD if start.task.split is Split.HELDOUT else 0)
        return _Teller(row, start.member, is_silent=self.silent == (row, start.member))

    async def aclose(self) -> None:
        """Nothing to close."""


class _Teller:
    wants_scripts = False

    def __init__(self, row: int, member: int, *, is_silent: bool) -> None:
        self._replies, self._is_silent = _replies("group", row, member), is_silent

    async def act(self, turn: Turn) -> Reply:
        if self._is_silent:
            raise PolicyError("the endpoint is gone")
        return Reply(str(self._replies[turn.index]))

    def trace(self) -> None:
        return None

    def close(self) -> None:
        """Nothing to close."""


@pytest_asyncio.fixture
async def server(env_host: EnvHost, host_process: HostProcess) -> AsyncIterator[EnvServer]:
    files = v0_zoo("group")
    digest = await prepared_once(env_host, host_process, files)
    async with env_host.lease(digest, resources_of(files[MANIFEST_PATH])) as leased:
        yield leased


async def _manifest(server: EnvServer) -> Manifest:
    """As the import proposes it."""
    async with server.session() as session:
        adapter = (await session.state(timeout=60))["adapter"]
    report = ImportReport(starts=True, name="v0_zoo", adapter=adapter, action_schema=server.action_schema)
    return read_manifest(write_manifest({"name": "v0_zoo"}, propose(report)))


async def _play(server: EnvServer, policy: Told, members: tuple[int, ...] = (0, 1, 2)) -> dict[int, list[Rollout]]:
    """By row; the rows of the evaluation are those of both splits, one after the other."""
    manifest, found = await _manifest(server), dict[int, list[Rollout]]()
    assert manifest.proctor.tasks.grouped

    def take(rollout: Rollout) -> None:
        found.setdefault(rollout.group, []).append(rollout)

    rows = [(Split.TRAIN, n) for n in range(ROWS - HELD)] + [(Split.HELDOUT, n) for n in range(HELD)]
    groups = [GroupPlan(task_of(manifest, split, n), row, members, SIZE) for row, (split, n) in enumerate(rows)]
    settings: dict[str, Any] = {"phase": Phase.EVALUATION, "seed": 1, "concurrency": 8, "max_attempts": 1}
    await RolloutPool(groups, server=server, policy=policy, manifest=manifest, on_rollout=take, **settings).play()
    return found


async def test_the_engine_gets_the_librarys_own_group_rewards(server: EnvServer, host_process: HostProcess):
    ours = await _play(server, Told())
    theirs = by_the_library(host_process, "group")
    for row in range(ROWS):
        expected = sorted(entry["metrics"]["longest_of_the_group"] for entry in theirs if entry["example_id"] == row)
        rewards = sorted(entry["reward"] for entry in theirs if entry["example_id"] == row)
        assert sorted(rollout.columns["longest_of_the_group"] for rollout in ours[row]) == expected
        assert sorted(float(rollout.reward or 0.0) for rollout in ours[row]) == pytest.approx(rewards)
        assert expected != [1.0] * SIZE  # a group of one would always be the longest


async def test_a_missing_member_gets_the_reward_that_it_has_among_its_siblings(server: EnvServer):
    whole, missing = await _play(server, Told()), await _play(server, Told(), (1,))
    for row in range(ROWS):
        [again] = missing[row]
        [first] = [rollout for rollout in whole[row] if rollout.member == 1]
        assert (again.member, again.columns) == (1, first.columns)


@pytest.mark.timeout(240)
async def test_a_member_that_fails_hangs_no_one(server: EnvServer):
    played = await _play(server, Told(silent=(2, 1)))
    failed = played.pop(2)
    assert {rollout.status for rollout in failed} == {RolloutStatus.FAILED}
    assert all("the endpoint is gone" in str(rollout.error_message) for rollout in failed)
    assert all(rollout.is_completed for rollouts in played.values() for rollout in rollouts)
