"""If root starts Proctor, the env host runs as a dedicated user that reaches no database, key or other process."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from backend.domain.environments.manifest import ResourcesSpec
from proctor_sandbox import linux
from tests.envhost_fixture import HostProcess, package_files, prepared, start_host
from tests.environments.host.conftest import RUN_CODE
from tests.ops.proctor_process import processes_using, proctor_up
from workers.environments.client import EnvHost
from workers.environments.dedicated_user import UID

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user"),
]
SECONDS = 30.0
SECRET = "not-for-foreign-code"


@pytest.fixture
def data() -> Iterator[Path]:
    """A data folder with secrets, as root leaves them; some readable by anyone who gets near."""
    folder = Path(tempfile.mkdtemp(prefix="pe-"))
    folder.chmod(0o755)
    data = folder / "data"
    for name in ("secret-key", "cli-token", "postgres/PG_VERSION", "artifacts/weights", "run/lock"):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text(SECRET)
    (data / "environments" / "old").mkdir(parents=True)
    (data / "environments" / "old" / "left-by-root").touch()
    yield data
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def host(data: Path) -> Iterator[HostProcess]:
    (data.parent / ".env").write_text(f"PROCTOR_TOKEN={SECRET}\n")
    start_in = partial(os.chdir, data.parent)
    host = start_host(data, module="workers.environments.dedicated_user", before_exec=start_in)
    yield host
    host.stop()


def _as_the_host(pid: int, code: str) -> str:
    """The output of a program that has escaped from a sandbox: the env host's user, in its view of the files."""
    mounts = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)

    def become() -> None:
        linux.check(linux.libc.setns(mounts, linux.NEW_MOUNTS), "setns")
        os.chdir("/")
        os.setgroups([])
        os.setresgid(UID, UID, UID)
        os.setresuid(UID, UID, UID)

    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, pass_fds=[mounts], preexec_fn=become, timeout=60)
    os.close(mounts)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


async def test_it_serves_packages_as_the_dedicated_user(host: HostProcess, data: Path) -> None:
    status = Path(f"/proc/{host.process.pid}/status").read_text()
    assert f"Uid:\t{UID}\t{UID}\t{UID}\t{UID}" in status
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    assert not (data / "environments" / "old").exists()
    async with EnvHost(host.address) as client:
        told = await client.status()
        assert (told["launcher"], "warning" in told["probe"]) == ("jail", False)
        hash_ = await prepared(client, package_files("attacker", in_step=RUN_CODE, sessions=8))
        async with client.lease(hash_, ResourcesSpec(memory_mb=256, sessions=8)) as server, server.session() as session:
            await session.reset({}, timeout=SECONDS)
            played = await session.step({"command": "import os; result = os.getuid()"}, timeout=SECONDS)
            assert played.fields["text"] == "65534"
    assert any((data / "packages").iterdir())


def test_an_escape_finds_no_secret_and_ends_no_process(host: HostProcess, data: Path) -> None:
    pid = host.process.pid
    assert _as_the_host(pid, f"import os; print(sorted(os.listdir({str(data)!r})))") == str(
        ["envhost", "environments", "packages", "run"]
    )
    written = f"open({str(data / 'environments' / 'mine')!r}, 'w').write('kept')"
    assert _as_the_host(pid, f"print({written})") == "4"
    for path in (data / "secret-key", data / "postgres" / "PG_VERSION", data / "artifacts" / "weights"):
        assert path.read_text() == SECRET
        assert _as_the_host(pid, f"import os; print(os.path.exists({str(path)!r}))") == "False"
    settings = data.parent / ".env"
    assert SECRET in settings.read_text()
    assert _as_the_host(pid, f"print(open({str(settings)!r}).read())") == ""
    kill = f"""
import os
try: os.kill({os.getpid()}, {int(signal.SIGKILL)})
except PermissionError: print("refused")
"""
    assert _as_the_host(pid, kill) == "refused"
    own = subprocess.Popen(["sleep", "60"], preexec_fn=lambda: os.setresuid(UID, UID, UID))
    assert _as_the_host(pid, kill.replace(str(os.getpid()), str(own.pid)) + "else: print('ended')") == "ended"
    assert own.wait(10) == -signal.SIGKILL


async def test_it_runs_as_root_with_a_warning_if_the_user_does_not_exist(data: Path) -> None:
    def forbid() -> None:
        linux.unshare(linux.NEW_USER | linux.NEW_MOUNTS)  # root of a namespace in which the user does not exist
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text("0 0 1")
        Path("/proc/self/gid_map").write_text("0 0 1")

    host = start_host(data, module="workers.environments.dedicated_user", before_exec=forbid)
    try:
        async with EnvHost(host.address) as client:
            assert "runs as root" in (await client.status())["probe"]["warning"]
        assert "the env host runs as root" in host.log.read_text()
    finally:
        host.stop()


def test_a_supervised_env_host_gets_no_secret() -> None:
    folder = Path(tempfile.mkdtemp(prefix="pe-"))
    given = {"OPENAI_API_KEY": SECRET, "HF_TOKEN": SECRET, "AWS_SECRET_ACCESS_KEY": SECRET, "PIP_DEFAULT_TIMEOUT": "61"}
    try:
        with proctor_up(folder / "data", environment=given) as proctor:
            proctor.wait_for("ready", name="env host")
            [pid] = [
                pid
                for pid in processes_using(folder / "data")
                if b"workers.environments.host" in Path(f"/proc/{pid}/cmdline").read_bytes()
            ]
            assert f"Uid:\t{UID}" in Path(f"/proc/{pid}/status").read_text()
            variables = Path(f"/proc/{pid}/environ").read_text()
            secrets = [SECRET, (folder / "data" / "secret-key").read_text().strip(), "postgresql", "redis"]
            assert not [secret for secret in secrets if secret in variables]
            assert "PIP_DEFAULT_TIMEOUT=61" in variables
            assert proctor.interrupt() == 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)
