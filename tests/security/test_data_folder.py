"""Proctor never deletes data it did not just create, and a leftover of a crash does not block a start."""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from backend.core.artifacts import get_folder, put_folder
from backend.core.embedded import CannotStart, Postgres, Valkey, socket_folder
from backend.supervisor.children import Child, ChildGaveUp
from backend.supervisor.data_folder import open_data_folder
from tests.installation import forget_settings
from tests.ops.proctor_process import proctor_up

pytestmark = pytest.mark.timeout(300)

AS_MOUNTED = ("unshare", "--mount", "sh", "-c")


@pytest.fixture
def data() -> Iterator[Path]:
    """A short path, because sockets are in it."""
    folder = Path(tempfile.mkdtemp(prefix="ps-"))
    yield folder / "data"
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres(data: Path) -> Iterator[Postgres]:
    server = Postgres(data / "postgres", socket_folder(data), data / "postgres.log")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Path]:
    """A stopped database that has one row, made once: to initialize one takes ten times as long as a copy."""
    with tempfile.TemporaryDirectory(prefix="ps-") as name:
        server = Postgres(Path(name) / "postgres", socket_folder(Path(name)), Path(name) / "log")
        server.start()
        with psycopg.connect(server.url().replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute("CREATE TABLE work AS SELECT 'precious' AS word")
        server.stop()
        yield server.folder


@pytest.fixture
def stored(postgres: Postgres, cluster: Path) -> Postgres:
    """A stopped database that has one row."""
    shutil.copytree(cluster, postgres.folder)
    return postgres


@pytest.fixture
def valkey(data: Path) -> Iterator[Child]:
    """As the supervisor watches it, with one list of wake-ups stored, stopped."""
    sockets = socket_folder(data)
    server = Valkey(data / "valkey", sockets, data / "valkey.log")
    child = Child("broker", server.launch, server.log, server.is_ready, server.stop_signal)
    child.launch()
    _until_ready(child)
    _tell_valkey(server, "RPUSH queue " + "wake-up " * 200)
    child.ask_to_stop()
    child.wait_until_ended(10)
    yield child
    child.wait_until_ended(0)


@pytest.mark.slow
def test_a_database_without_its_version_file_is_refused_and_kept(stored: Postgres) -> None:
    (stored.folder / "PG_VERSION").unlink()
    before = _files(stored.folder)

    with pytest.raises(CannotStart) as refused:
        stored.start()

    for words in (str(stored.folder), "PG_VERSION", "Nothing was deleted", "backup", "--data"):
        assert words in str(refused.value)
    assert _files(stored.folder) == before
    (stored.folder / "PG_VERSION").write_text("18\n")
    stored.start()
    assert _word(stored) == "precious"


@pytest.mark.slow
def test_up_refuses_a_database_without_its_version_file(stored: Postgres, data: Path) -> None:
    (data / "secret-key").write_text("k" * 40)
    (stored.folder / "PG_VERSION").unlink()
    before = _files(stored.folder)

    with proctor_up(data) as proctor:
        assert proctor.process.wait(60) == 2
        errors = proctor.errors()

    assert "PG_VERSION" in errors
    assert "Nothing was deleted" in errors
    assert "Traceback" not in errors
    assert _files(stored.folder) == before


def test_a_foreign_file_in_the_folder_is_no_reason_to_delete_it(postgres: Postgres) -> None:
    postgres.folder.mkdir(parents=True)
    (postgres.folder / "thesis.txt").write_text("ten years")

    with pytest.raises(CannotStart, match=r"thesis\.txt"):
        postgres.start()

    assert (postgres.folder / "thesis.txt").read_text() == "ten years"


@pytest.mark.slow
def test_an_empty_folder_is_initialized(postgres: Postgres) -> None:
    postgres.folder.mkdir(parents=True)

    postgres.start()

    assert postgres.is_ready()


@pytest.mark.slow
def test_our_own_interrupted_initialization_is_done_again(postgres: Postgres) -> None:
    """The marker proves that the files are ours."""
    begun = postgres.folder.with_name("postgres.initializing")
    (begun / "cluster" / "base").mkdir(parents=True)
    (begun / "cluster" / "PG_VERSION").write_text("18\n")
    (begun / "initialization-in-progress").touch()

    postgres.start()

    assert postgres.is_ready()
    assert not begun.exists()


def test_files_where_the_initialization_works_are_kept_unless_the_marker_proves_them_ours(postgres: Postgres) -> None:
    foreign = postgres.folder.with_name("postgres.initializing") / "cluster" / "thesis.txt"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("ten years")

    with pytest.raises(CannotStart, match=r"postgres\.initializing"):
        postgres.start()

    assert foreign.read_text() == "ten years"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["postmaster.pid", "socket lock"])
@pytest.mark.parametrize("content", ["garbage", "empty", "another process"])
def test_a_stale_lock_file_does_not_block_a_restart(stored: Postgres, name: str, content: str) -> None:
    """A process id is used again after a reboot."""
    with subprocess.Popen(["sleep", "60"]) as other:
        lines = [str(other.pid), str(stored.folder), "1700000000", "5432", str(stored.sockets), "", "1 1", "ready"]
        text = {"garbage": "\0\0not a pid\n", "empty": "", "another process": "\n".join(lines)}[content]
        lock = stored.folder / name if name == "postmaster.pid" else stored.sockets / ".s.PGSQL.5432.lock"
        lock.write_text(text)
        lock.chmod(0o600)
        try:
            stored.start()
        finally:
            other.kill()

    assert _word(stored) == "precious"


@pytest.mark.slow
def test_the_lock_file_of_a_database_that_runs_is_respected(stored: Postgres) -> None:
    stored.start()
    (stored.folder / "postmaster.pid").write_text("garbage")
    second = Postgres(stored.folder, stored.sockets, stored.log)

    with pytest.raises(CannotStart, match="is in use by process"):
        second.start()

    assert (stored.folder / "postmaster.pid").read_text() == "garbage"
    assert _word(stored) == "precious"


def test_a_database_of_another_major_version_is_refused(stored: Postgres) -> None:
    (stored.folder / "PG_VERSION").write_text("16\n")

    with pytest.raises(CannotStart, match=r"created by Postgres 16, and this Proctor runs Postgres 18"):
        stored.start()


def test_an_unreadable_version_is_refused(stored: Postgres) -> None:
    (stored.folder / "PG_VERSION").write_bytes(b"\0\0\0")

    with pytest.raises(CannotStart, match=r"PG_VERSION does not contain a version number"):
        stored.start()


@pytest.mark.slow
def test_loose_permissions_of_a_restored_backup_are_tightened(stored: Postgres) -> None:
    stored.folder.chmod(0o755)

    stored.start()

    assert _word(stored) == "precious"


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_database_of_another_user_is_refused(stored: Postgres) -> None:
    owner = pwd.getpwnam("nobody")
    os.chown(stored.folder, owner.pw_uid, owner.pw_gid)

    with pytest.raises(CannotStart, match=r"belongs to user nobody"):
        stored.start()


_DAMAGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "garbage in the log": ("*.incr.aof", lambda file: file.write_bytes(b"garbage" + file.read_bytes())),
    "garbage in the snapshot": ("*.base.rdb", lambda file: file.write_bytes(b"garbage" * 20)),
    "a truncated snapshot": ("*.base.rdb", lambda file: os.truncate(file, 20)),
    "a missing log": ("*.incr.aof", lambda file: file.unlink()),
    "an empty manifest": ("*.manifest", lambda file: os.truncate(file, 0)),
    "a truncated manifest": ("*.manifest", lambda file: os.truncate(file, file.stat().st_size - 5)),
}


@pytest.mark.parametrize("damage", _DAMAGES)
def test_a_damaged_valkey_file_is_moved_aside_and_does_not_block_a_restart(
    valkey: Child, data: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    pattern, harm = _DAMAGES[damage]
    (file,) = (data / "valkey" / "appendonlydir").glob(pattern)
    harm(file)
    before = _files(data / "valkey")

    valkey.launch()
    _until_ready(valkey)

    (aside,) = data.glob("valkey.damaged-*")
    assert _files(aside) == before
    assert str(aside) in caplog.text


def test_a_sound_valkey_folder_stays_where_it_is(valkey: Child, data: Path) -> None:
    """Also when Valkey was killed, and the end of its log is cut off."""
    (log,) = (data / "valkey" / "appendonlydir").glob("*.incr.aof")
    os.truncate(log, log.stat().st_size - 3)

    valkey.launch()
    _until_ready(valkey)

    assert not list(data.glob("valkey.damaged-*"))


def test_a_valkey_that_fails_for_another_reason_keeps_its_files(valkey: Child, data: Path) -> None:
    (data / "run" / "valkey.sock").unlink(missing_ok=True)
    (data / "run" / "valkey.sock").mkdir()
    before = _files(data / "valkey")

    valkey.launch()
    with pytest.raises(ChildGaveUp):
        _until_ready(valkey)

    assert not list(data.glob("valkey.damaged-*"))
    assert _files(data / "valkey").keys() >= before.keys()


@pytest.mark.parametrize("left", [None, ""])
def test_a_missing_key_of_a_used_folder_is_not_replaced(stored: Postgres, data: Path, left: str | None) -> None:
    """A new key would make every stored secret unreadable."""
    if left is not None:
        (data / "secret-key").write_text(left)

    with pytest.raises(CannotStart, match=r"secret-key is (missing|empty)(?s:.*)backup"):
        open_data_folder(data).secret_key()

    assert (data / "secret-key").exists() is (left is not None)


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount")
@pytest.mark.parametrize(
    ("options", "words"),
    [("size=64k,nr_inodes=4", "No space left on device"), ("ro", "Read-only file system")],
)
def test_a_full_or_read_only_disk_is_reported_with_a_message(data: Path, options: str, words: str) -> None:
    data.mkdir()
    up = f"{sys.executable} -m backend.cli up --json --port 0 --data {data}"
    done = subprocess.run(
        [*AS_MOUNTED, f"mount -t tmpfs -o {options} none {data} && exec env DATABASE_URL= REDIS_URL= {up}"],
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert str(data) in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == "", "no process was started"


@pytest.mark.slow
@pytest.mark.parametrize("is_own", [False, True])
def test_the_env_host_empties_only_its_own_folder(data: Path, is_own: bool) -> None:
    """It works in `env` next to its socket, which may be anywhere."""
    kept = data / "elsewhere" / "env" / "thesis.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("ten years")
    if is_own:
        (kept.parent / "made-by-the-env-host").touch()
    environment = dict(os.environ)  # noqa: TID251 - a child's environment
    environment |= {"PROCTOR_DATA": str(data), "PROCTOR_ENVHOST_URL": f"unix:{data}/elsewhere/host.sock"}
    command = [sys.executable, "-m", "workers.environments.host"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as host:
        assert host.stderr is not None
        try:
            said = ""
            while "is ready" not in said and "Nothing was deleted" not in said:
                said = host.stderr.readline()
                assert said or host.poll() is None
        finally:
            host.terminate()
            host.communicate(timeout=30)

    assert kept.exists() is not is_own


def test_a_stored_artifact_stays_until_its_successor_is_complete(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROCTOR_DATA", str(data))
    forget_settings()
    (data / "weights").mkdir(parents=True)
    (data / "weights" / "model").write_text("first")
    put_folder(data / "weights", "checkpoints/1")

    (data / "weights" / "model").write_text("second")
    (data / "weights" / "broken").symlink_to(data / "gone")
    with pytest.raises(shutil.Error):
        put_folder(data / "weights", "checkpoints/1")
    assert get_folder("checkpoints/1", data / "read").joinpath("model").read_text() == "first"

    (data / "weights" / "broken").unlink()
    put_folder(data / "weights", "checkpoints/1")
    assert get_folder("checkpoints/1", data / "again").joinpath("model").read_text() == "second"
    assert [path.name for path in (data / "artifacts" / "checkpoints").iterdir()] == ["1"]
    forget_settings()


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _word(postgres: Postgres) -> str:
    with psycopg.connect(postgres.url().replace("+psycopg", "")) as connection:
        row = connection.execute("SELECT word FROM work").fetchone()
        assert row is not None
        return str(row[0])


def _tell_valkey(server: Valkey, command: str) -> None:
    import redis

    with redis.Redis(unix_socket_path=str(server.socket)) as client:
        client.execute_command(*command.split())


def _until_ready(child: Child) -> None:
    deadline = time.monotonic() + 20
    while not child.is_ready:
        assert time.monotonic() < deadline, child.tail()
        child.watch()
        time.sleep(0.02)
    time.sleep(0.3)  # Valkey listens before it has read its files
    child.watch()
    if not child.is_ready:
        _until_ready(child)
