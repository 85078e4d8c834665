"""Supervision by a serving `proctor up`: the environment of its children, and how they are restarted."""

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import httpx
import psycopg
import pytest

from tests.ops.proctor_process import ProctorProcess, processes_using, proctor_up

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_the_token_that_it_leaves_opens_the_json_api(served: ProctorProcess) -> None:
    url = served.wait_until_web()
    token = (served.data / "cli-token").read_text().strip()

    answer = httpx.get(f"{url}/api/v1/openapi.json", headers={"Authorization": f"Bearer {token}"}, timeout=30)

    assert answer.status_code == 200
    assert httpx.get(f"{url}/api/v1/openapi.json").status_code == 401


def test_the_env_host_is_reported_no_secret(served: ProctorProcess) -> None:
    told = Path(f"/proc/{_pid_of(served.data, 'workers.environments.host')}/environ").read_text()

    assert "PROCTOR_DATA=" in told
    for name in ("DATABASE_URL", "REDIS_URL", "PROCTOR_SECRET_KEY"):
        assert f"{name}=" not in told


def test_the_fork_server_has_no_thread_and_no_connection_but_the_supervisors(served: ProctorProcess) -> None:
    served.wait_until_web()
    server = Path(f"/proc/{_pid_of(served.data, 'workers.fork_server')}")
    streams = {Path("/dev/null"), served.data / "logs" / "fork-server.log"}

    others = [file.readlink().name for file in (server / "fd").iterdir() if file.readlink() not in streams]

    assert len(others) == 1
    assert others[0].startswith("socket:")
    assert len(list((server / "task").iterdir())) == 1


def test_a_second_one_on_the_same_data_is_refused(served: ProctorProcess) -> None:
    url = served.wait_until_web()
    with proctor_up(served.data) as second:
        assert second.process.wait(30) == 2
        assert f"another Proctor runs on the data folder {served.data}" in second.errors()
    assert httpx.get(f"{url}/healthz").status_code == 200


def test_a_child_that_dies_is_started_again(served: ProctorProcess) -> None:
    url = served.wait_until_web()
    served.forget_events()

    for words in ("workers.fork_server", "backend.web.server", "-Q cpu", "workers.environments.host"):
        os.kill(_pid_of(served.data, words), signal.SIGKILL)

    for name in ("web", "cpu worker", "env host"):
        served.wait_for("ready", name=name)
    assert httpx.get(f"{url}/healthz").status_code == 200


def test_a_child_that_hangs_is_replaced_and_one_that_is_busy_is_not(served: ProctorProcess) -> None:
    """The env host is stopped while the web has more to do than its threads can; then the web is stopped too."""
    url = served.wait_until_web()
    served.forget_events()
    busy = _pid_of(served.data, "backend.web.server")
    os.kill(_pid_of(served.data, "workers.environments.host"), signal.SIGSTOP)
    is_over = threading.Event()

    def load() -> None:
        with httpx.Client(base_url=url, timeout=60) as client:
            while not is_over.is_set():
                with contextlib.suppress(httpx.HTTPError):
                    client.post("/sign-in", data={"email": "nobody@example.org", "password": "x" * 20})

    threads = [threading.Thread(target=load) for _ in range(60)]
    for thread in threads:
        thread.start()
    served.wait_for("ready", name="env host")
    is_over.set()
    for thread in threads:
        thread.join()
    assert _pid_of(served.data, "backend.web.server") == busy

    os.kill(busy, signal.SIGSTOP)
    served.wait_for("ready", name="web")

    assert _pid_of(served.data, "backend.web.server") != busy
    assert httpx.get(f"{url}/livez").json() == {"status": "ok"}
    assert any("web has not answered for 10 s" in event.get("message", "") for event in served.events)


def test_a_killed_database_comes_back_with_its_rows(served: ProctorProcess) -> None:
    url = served.wait_until_web()
    served.forget_events()

    os.kill(int((served.data / "postgres" / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)

    served.wait_for("ready", name="database")
    deadline = time.monotonic() + 10
    while httpx.get(f"{url}/healthz").status_code != 200:
        assert time.monotonic() < deadline
    assert _count_environments(served.data) > 0


def _pid_of(data: Path, words: str) -> int:
    pids = [pid for pid, command in processes_using(data).items() if words in command]
    return min(pids)


def _count_environments(data: Path) -> int:
    with psycopg.connect(f"host={data}/run user=proctor dbname=postgres") as connection:
        row = connection.execute("SELECT count(*) FROM environments").fetchone()
        assert row is not None
        return int(row[0])
