"""kill -9 in the middle of work, on a whole installation: what was begun is finished, nothing is lost or doubled."""

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.ops.proctor_process import ProctorProcess, processes_using

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEPS, TASKS, GROUP_SIZE, SAVED_EVERY = 10, 3, 4, 3
TRAINING = {
    "model": {"context": 192},
    "sft": {"episodes": 48, "steps": 12, "batch": 16, "warmup_steps": 2},
    "gate": {"minimum_format": 0, "minimum_success": 0},
    "grpo": {"steps": STEPS, "tasks_per_step": TASKS, "group_size": GROUP_SIZE},
    "heldout": {"every": STEPS // 2, "tasks": 9},
    "checkpoints": {"every": SAVED_EVERY},
}
EPISODES = 1500


@dataclass(frozen=True)
class Installation:
    proctor: ProctorProcess
    data: Path
    client: httpx.Client

    def rows(self, query: str, **parameters: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(f"host={self.data}/run user=proctor dbname=postgres") as connection:
            return connection.execute(query, parameters).fetchall()

    def ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        answer = self.client.get(path) if body is None else self.client.post(path, json=body)
        assert answer.status_code < 300, answer.text
        return dict(answer.json())

    def wait_for_end(self, run_id: str, seconds: float = 240) -> dict[str, Any]:
        wait_for(lambda: self.ask(f"/runs/{run_id}")["status"] not in {"queued", "running"}, seconds)
        return self.ask(f"/runs/{run_id}")


@pytest.fixture(scope="module")
def installation(served: ProctorProcess) -> Iterator[Installation]:
    token = (served.data / "cli-token").read_text().strip()
    url = f"{served.wait_until_web()}/api/v1"
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60) as client:
        wait_for(lambda: client.get("/environments/tictactoe").status_code == 200)
        yield Installation(served, served.data, client)


def test_a_killed_worker_in_the_middle_of_grpo(installation: Installation) -> None:
    body = {"version_id": tictactoe(installation), "configuration": TRAINING, "without_certificate": "a test of kill"}
    run_id = installation.ask("/training", body)["id"]
    wait_for(lambda: last_step(installation, run_id) > SAVED_EVERY + 1, 240)

    installation.proctor.forget_events()
    kill_worker(installation.data)
    stored = installation.rows("SELECT id, reward FROM rollouts WHERE run_id = %(run)s", run=run_id)
    assert installation.ask(f"/runs/{run_id}")["status"] == "running"
    assert last_step(installation, run_id) < STEPS
    installation.proctor.wait_for("ready", name="gpu worker")
    run = installation.wait_for_end(run_id)

    assert (run["status"], run["attempt"], run["reason"]) == ("completed", 2, None)
    assert set(stored) <= set(installation.rows("SELECT id, reward FROM rollouts WHERE run_id = %(run)s", run=run_id))
    assert played(installation, run_id) == [
        (step, ordinal, member, 1)
        for step in range(1, STEPS + 1)
        for ordinal in range(TASKS)
        for member in range(GROUP_SIZE)
    ]
    first, again = curves(installation, run_id)
    assert min(again) - 1 in range(SAVED_EVERY, STEPS, SAVED_EVERY), "it goes on from a saved state"
    assert sorted(first | again) == list(range(1, STEPS + 1))
    assert first | again == pytest.approx(means(installation, run_id))
    stages = installation.rows("SELECT stage, step FROM checkpoints WHERE run_id = %(run)s ORDER BY 1, 2", run=run_id)
    assert stages == [("grpo", STEPS // 2), ("grpo", STEPS), ("sft", 12), ("untrained", 0)]


def test_a_killed_database_in_the_middle_of_an_evaluation(installation: Installation) -> None:
    run_id = begin_evaluation(installation)
    installation.proctor.forget_events()
    os.kill(int((installation.data / "postgres" / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
    installation.proctor.wait_for("ready", name="database")
    assert 100 < count(installation, run_id) < EPISODES
    wait_for(lambda: installation.client.get("/me").status_code == 200)
    assert_whole(installation, run_id, attempts=2)


def test_a_killed_broker_in_the_middle_of_an_evaluation(installation: Installation) -> None:
    run_id = begin_evaluation(installation)
    installation.proctor.forget_events()
    kill(process_of(installation.data, "valkey-server"))
    installation.proctor.wait_for("ready", name="broker")
    assert_whole(installation, run_id)
    assert_whole(installation, begin_evaluation(installation))


def test_a_killed_worker_in_the_middle_of_an_evaluation(installation: Installation) -> None:
    run_id = begin_evaluation(installation)
    installation.proctor.forget_events()
    worker = process_of(installation.data, "-Q cpu")
    kill(worker, *descendants(worker))
    assert count(installation, run_id) < EPISODES
    installation.proctor.wait_for("ready", name="cpu worker")
    assert_whole(installation, run_id, attempts=2)


def test_a_killed_environment_server_in_the_middle_of_an_evaluation(installation: Installation) -> None:
    run_id = begin_evaluation(installation)
    host = process_of(installation.data, "workers.environments.host")
    servers = [pid for pid in descendants(host) if not list_children(pid)]
    assert servers, "nothing is played on"
    kill(*servers)
    assert count(installation, run_id) < EPISODES
    assert_whole(installation, run_id)


def begin_evaluation(installation: Installation) -> str:
    """An evaluation that has got somewhere and has far to go."""
    policies = {policy["name"]: policy["id"] for policy in installation.ask("/policies")["items"]}
    body = {"version_id": tictactoe(installation), "policy_id": policies["random"], "split": "train", "group_size": 3}
    run_id = str(installation.ask("/evaluations", {**body, "tasks": EPISODES // 3})["id"])
    wait_for(lambda: count(installation, run_id) > 100)
    return run_id


def assert_whole(installation: Installation, run_id: str, attempts: int = 1) -> None:
    """Every rollout is there once and has a reward."""
    run = installation.wait_for_end(run_id)
    assert (run["status"], run["attempt"], run["reason"]) == ("completed", attempts, None)
    assert run["summary"]["completed"] == EPISODES
    query = """
    SELECT count(*), count(DISTINCT (group_id, member)), count(DISTINCT seq), max(seq), count(reward)
    FROM rollouts WHERE run_id = %(run)s"""
    [(rows, places, numbers, last, rewards)] = installation.rows(query, run=run_id)
    assert (rows, places, numbers, rewards) == (EPISODES,) * 4
    assert last >= EPISODES


def tictactoe(installation: Installation) -> str:
    return str(installation.ask("/environments/tictactoe")["latest"]["id"])


def kill_worker(data: Path) -> None:
    """The gpu worker with everything below it: its pool, the training child."""
    worker = process_of(data, "-Q gpu")
    tree = [worker, *descendants(worker)]
    assert any("workers.training.run" in Path(f"/proc/{pid}/cmdline").read_text() for pid in tree)
    kill(*tree)


def process_of(data: Path, words: str) -> int:
    """The oldest process of this installation whose command holds these words."""
    return min(pid for pid, command in processes_using(data).items() if words in command)


def kill(*pids: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    below = []
    for child in list_children(pid):
        below += [child, *descendants(child)]
    return below


def list_children(pid: int) -> list[int]:
    with suppress(FileNotFoundError, ProcessLookupError):
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return []


def last_step(installation: Installation, run_id: str) -> int:
    query = "SELECT max(training_step) FROM rollouts WHERE run_id = %(run)s AND phase = 'train'"
    return int(installation.rows(query, run=run_id)[0][0] or 0)


def count(installation: Installation, run_id: str) -> int:
    return int(installation.rows("SELECT count(*) FROM rollouts WHERE run_id = %(run)s", run=uuid.UUID(run_id))[0][0])


def played(installation: Installation, run_id: str) -> list[tuple[int, int, int, int]]:
    """(step, group, member, rows) of all that was played to learn from."""
    query = """
    SELECT g.training_step, g.ordinal, r.member, count(*) FROM rollouts r JOIN groups g ON g.id = r.group_id
    WHERE r.run_id = %(run)s AND r.phase = 'train' GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"""
    return installation.rows(query, run=run_id)  # type: ignore[return-value]


def curves(installation: Installation, run_id: str) -> tuple[dict[int, float], dict[int, float]]:
    """The reward's curve of each attempt."""
    query = "SELECT attempt, step, value FROM metric_points WHERE run_id = %(run)s AND name = 'reward'"
    found: dict[int, dict[int, float]] = {1: {}, 2: {}}
    for attempt, step, value in installation.rows(query, run=run_id):
        found[attempt][step] = value
    return found[1], found[2]


def means(installation: Installation, run_id: str) -> dict[int, float]:
    """The mean reward of the stored rollouts, by step. As text a four-byte reward of few decimals is exact again."""
    query = """
    SELECT training_step, avg(reward::text::float8) FROM rollouts
    WHERE run_id = %(run)s AND phase = 'train' GROUP BY 1"""
    return dict(installation.rows(query, run=run_id))  # type: ignore[arg-type]


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
