"""`proctor up` whole: every process really starts, is looked after and ends."""

import os
import shutil
import signal
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from tests.ops.proctor_process import ProctorProcess, processes_using, proctor_up

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

AS_ORDINARY_USER = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
"""Root becomes a user without any right, who still reads the files of this tree wherever it lies."""


@pytest.fixture
def data() -> Iterator[Path]:
    """A short path: sockets lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="pu-"))
    yield folder / "data"
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def served() -> Iterator[ProctorProcess]:
    """One that serves; what a test does to it disturbs no other, for its children come back."""
    folder = Path(tempfile.mkdtemp(prefix="pu-"))
    with proctor_up(folder / "data") as proctor:
        proctor.wait_until_serving()
        yield proctor
    shutil.rmtree(folder, ignore_errors=True)


def test_it_serves_a_sign_in_link_and_ends_without_leaving_a_process(data: Path) -> None:
    with proctor_up(data) as proctor:
        url = proctor.wait_until_serving()
        link = proctor.wait_for("sign_in")["url"]

        assert httpx.get(url, follow_redirects=True).status_code == 200
        assert str(link).startswith(url)
        assert httpx.get(str(link), follow_redirects=True).status_code == 200
        for secret in ("secret-key", "cli-token"):
            assert stat.S_IMODE((data / secret).stat().st_mode) == 0o600

        assert proctor.interrupt() == 0
    assert _gone(data, within=5.0)


def test_the_token_that_it_leaves_opens_the_json_api(served: ProctorProcess) -> None:
    url = served.wait_until_web()
    token = (served.data / "cli-token").read_text().strip()

    answer = httpx.get(f"{url}/api/v1/openapi.json", headers={"Authorization": f"Bearer {token}"})

    assert answer.status_code == 200
    assert httpx.get(f"{url}/api/v1/openapi.json").status_code == 401


def test_when_it_is_killed_every_child_ends_and_the_next_start_works(data: Path) -> None:
    with proctor_up(data) as proctor:
        proctor.wait_until_serving()
        assert len(processes_using(data)) > 6

        proctor.process.kill()
        proctor.process.wait()

        with proctor_up(data) as again:
            again.wait_until_serving()
    assert _gone(data, within=20.0)


def test_a_child_that_dies_is_started_again(served: ProctorProcess) -> None:
    url = served.wait_until_web()
    served.forget_events()

    for words in ("uvicorn backend.app", "-Q cpu", "workers.environments.host"):
        os.kill(_pid_of(served.data, words), signal.SIGKILL)

    for name in ("web", "cpu worker", "env host"):
        served.wait_for("ready", name=name)
    assert httpx.get(f"{url}/healthz").status_code == 200


def test_a_killed_database_comes_back_with_its_rows(served: ProctorProcess) -> None:
    url = served.wait_until_web()
    served.forget_events()

    os.kill(int((served.data / "postgres" / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)

    served.wait_for("ready", name="database")
    deadline = time.monotonic() + 10
    while httpx.get(f"{url}/healthz").status_code != 200:
        assert time.monotonic() < deadline
    assert _count_environments(served.data) > 0


def test_a_second_one_on_the_same_data_is_refused(served: ProctorProcess) -> None:
    url = served.wait_until_web()
    with proctor_up(served.data) as second:
        assert second.process.wait(30) == 2
        assert f"another Proctor runs on the data folder {served.data}" in second.errors()
    assert httpx.get(f"{url}/healthz").status_code == 200


def test_a_busy_port_is_told(data: Path) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        with proctor_up(data, "--port", str(port)) as proctor:
            assert proctor.process.wait(30) == 2
            assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in proctor.errors()


def test_a_data_folder_of_a_newer_version_is_refused(data: Path) -> None:
    with proctor_up(data) as proctor:
        proctor.wait_until_serving()
        with psycopg.connect(f"host={data}/run user=proctor dbname=postgres") as connection:
            connection.execute("UPDATE alembic_version SET version_num = 'f00dfeedf00d'")

    with proctor_up(data) as proctor:
        assert proctor.process.wait(60) == 2
        assert "written by a newer Proctor (its revision f00dfeedf00d is unknown here)" in proctor.errors()
    assert _gone(data, within=10.0)


def test_given_servers_are_used_instead_of_embedded_ones(data: Path, database_url: str, redis_url: str) -> None:
    given = database_url.replace("/postgres?", "/given?")
    with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("CREATE DATABASE given")

    with proctor_up(data, environment={"DATABASE_URL": given, "REDIS_URL": redis_url}) as proctor:
        proctor.wait_until_serving()

        assert not (data / "postgres").exists()
        assert not (data / "valkey").exists()


def test_the_env_host_is_told_no_secret(served: ProctorProcess) -> None:
    told = Path(f"/proc/{_pid_of(served.data, 'workers.environments.host')}/environ").read_text()

    assert "PROCTOR_DATA=" in told
    for name in ("DATABASE_URL", "REDIS_URL", "PROCTOR_SECRET_KEY"):
        assert f"{name}=" not in told


def test_it_works_as_an_ordinary_user(data: Path) -> None:
    with proctor_up(data, prefix=AS_ORDINARY_USER if os.getuid() == 0 else ()) as proctor:
        url = proctor.wait_until_serving()
        uids = Path(f"/proc/{proctor.process.pid}/status").read_text()

        assert httpx.get(f"{url}/healthz").status_code == 200
        assert "CapEff:\t0000000000000000" in uids


def _pid_of(data: Path, words: str) -> int:
    pids = [pid for pid, command in processes_using(data).items() if words in command]
    return min(pids)


def _gone(data: Path, within: float) -> bool:
    deadline = time.monotonic() + within
    while left := processes_using(data):
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.1)
    return True


def _count_environments(data: Path) -> int:
    with psycopg.connect(f"host={data}/run user=proctor dbname=postgres") as connection:
        row = connection.execute("SELECT count(*) FROM environments").fetchone()
        assert row is not None
        return int(row[0])
