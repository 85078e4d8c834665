"""`proctor up` from its start to its end: every process really starts and ends, or the start is refused."""

import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from backend.core.embedded import Postgres, socket_folder
from tests.ops.proctor_process import processes_using, proctor_up

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

AS_ORDINARY_USER = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
"""Root becomes a user without any right, who still reads the files of this tree wherever it lies."""


@pytest.fixture
def data() -> Iterator[Path]:
    """A short path: sockets lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="pu-"))
    yield folder / "data"
    shutil.rmtree(folder, ignore_errors=True)


def test_it_serves_a_sign_in_link_and_ends_without_leaving_a_process_killed_or_interrupted(data: Path) -> None:
    with proctor_up(data) as proctor:
        url = proctor.wait_until_serving()
        link = proctor.wait_for("sign_in")["url"]

        assert httpx.get(url, follow_redirects=True).status_code == 200
        assert str(link).startswith(url)
        assert httpx.get(str(link), follow_redirects=True).status_code == 200
        for secret in ("secret-key", "cli-token"):
            assert stat.S_IMODE((data / secret).stat().st_mode) == 0o600
        assert len(processes_using(data)) > 6

        proctor.process.kill()
        proctor.process.wait()

        with proctor_up(data) as again:
            again.wait_until_serving()

            assert again.interrupt() == 0
    assert _gone(data, within=5.0)


def test_given_servers_are_used_instead_of_embedded_ones(data: Path, database_url: str, redis_url: str) -> None:
    given = database_url.replace("/postgres?", "/given?")
    with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("CREATE DATABASE given")

    with proctor_up(data, environment={"DATABASE_URL": given, "REDIS_URL": redis_url}) as proctor:
        proctor.wait_until_web()
        proctor.wait_for("ready", name="cpu worker")  # which needs both servers

        assert not (data / "postgres").exists()
        assert not (data / "valkey").exists()


def test_it_works_as_an_ordinary_user(data: Path) -> None:
    with proctor_up(data, prefix=AS_ORDINARY_USER if os.getuid() == 0 else ()) as proctor:
        url = proctor.wait_until_serving()
        uids = Path(f"/proc/{proctor.process.pid}/status").read_text()

        assert httpx.get(f"{url}/healthz").status_code == 200
        assert "CapEff:\t0000000000000000" in uids


def test_a_data_folder_of_a_newer_version_is_refused(data: Path) -> None:
    sockets = socket_folder(data)
    newer = Postgres(data / "postgres", sockets, data / "newer.log")
    newer.start()
    with psycopg.connect(f"host={sockets} user=proctor dbname=postgres") as connection:
        connection.execute("CREATE TABLE alembic_version AS SELECT 'f00dfeedf00d' AS version_num")
    newer.stop()
    (data / "secret-key").write_text("its key")

    with proctor_up(data) as proctor:
        assert proctor.process.wait(60) == 2
        assert "schema revision f00dfeedf00d, which Proctor" in proctor.errors()
    assert _gone(data, within=10.0)


def test_a_busy_port_is_reported(data: Path) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        with proctor_up(data, "--port", str(port)) as proctor:
            assert proctor.process.wait(30) == 2
            assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in proctor.errors()


def _gone(data: Path, within: float) -> bool:
    deadline = time.monotonic() + within
    while left := processes_using(data):
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.1)
    return True
