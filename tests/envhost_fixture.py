"""A real env host for the tests of all areas (fixtures `env_host` and `host_process`), and tiny packages for it."""

import asyncio
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from backend.domain.environments.packages import content_hash
from backend.settings import PROJECT_ROOT, get_settings
from workers.environments.client import EnvHost

START_SECONDS = 60.0


@dataclass
class HostProcess:
    """An env host in a separate process with a separate data folder."""

    process: "subprocess.Popen[bytes]"
    data: Path
    address: str
    log: Path

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(20)


def start_host(
    data: Path,
    *arguments: str,
    address: str = "",
    before_exec: Callable[[], None] | None = None,
    module: str = "workers.environments.host",
    **variables: str,
) -> HostProcess:
    """Returns when it answers."""
    log = data / "envhost.log"
    data.mkdir(parents=True, exist_ok=True)
    address = address or f"unix:{data}/run/envhost.sock"
    environment = os.environ | {"PROCTOR_DATA": str(data), "PROCTOR_ENVHOST_URL": address} | variables  # noqa: TID251
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=PROJECT_ROOT,
            env=environment,
            stdout=output,
            stderr=output,
            preexec_fn=before_exec,
        )
    deadline = time.monotonic() + START_SECONDS
    while b"env host is ready" not in log.read_bytes():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise RuntimeError(f"the env host did not start:\n{log.read_text()}")
        time.sleep(0.02)
    return HostProcess(process, data, address, log)


@pytest.fixture(scope="session")
def environments_folder(testrun_uid: str) -> Iterator[Path]:
    """The virtual environments of packages, which the test processes of one run share; the last one removes it."""
    folder = Path(tempfile.gettempdir()) / f"pv-{testrun_uid[:12]}"
    folder.mkdir(exist_ok=True)
    with (folder / "used.lock").open("w") as used:
        fcntl.flock(used, fcntl.LOCK_SH)
        yield folder
        with suppress(BlockingIOError):
            fcntl.flock(used, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def host_process(environments_folder: Path) -> Iterator[HostProcess]:
    """One env host for all tests of this process: its runtime takes seconds to import."""
    data = Path(tempfile.mkdtemp(prefix="ph-"))
    (data / "environments").symlink_to(environments_folder)
    host = start_host(data)
    yield host
    host.stop()
    shutil.rmtree(data, ignore_errors=True)


def find_host(host: HostProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process and its children use it until `committed_database` resets the settings."""
    monkeypatch.setenv("PROCTOR_ENVHOST_URL", host.address)
    get_settings.cache_clear()


@pytest.fixture
def found_host(committed_database: str, host_process: HostProcess, monkeypatch: pytest.MonkeyPatch) -> HostProcess:
    """Jobs commit for real and find the env host."""
    find_host(host_process, monkeypatch)
    return host_process


@pytest_asyncio.fixture
async def env_host(host_process: HostProcess) -> AsyncIterator[EnvHost]:
    """A client of the running env host."""
    async with EnvHost(host_process.address) as host:
        yield host


MANIFEST = """\
spec_version: 1
name: {name}
app: server.app:app
proctor:
  agent:
    action: {{format: text, field: amount, type: integer}}
  rewards: {{gain: 1.0, tidy: 0.5}}
  resources: {{memory_mb: 256, sessions: {sessions}}}
"""

MODELS = """\
from openenv.core.env_server import Action, Observation


class CounterAction(Action):
    amount: int = 1
    command: str = ""


class CounterObservation(Observation):
    total: int = 0
    text: str = ""
    seed: int | None = None
    data: dict = {}
"""

ENVIRONMENT = """\
from openenv.core.env_server import Environment, State

from models import CounterAction, CounterObservation


class CounterEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.total, self.steps, self.arguments = 0, 0, {{}}

    def reset(self, seed=None, episode_id=None, **arguments):
        self.total, self.steps, self.arguments = 0, 0, arguments
        {in_reset}
        return CounterObservation(total=0, seed=seed, text=f"start {{arguments.get('level', 0)}}")

    def step(self, action: CounterAction, timeout_s=None, **arguments):
        self.steps += 1
        self.total += action.amount
        observation = CounterObservation(
            total=self.total,
            done=self.total >= 3,
            reward=float(action.amount),
            metadata={{"rewards": {{"gain": float(action.amount), "tidy": 0.5}}}},
        )
        {in_step}
        return observation

    @property
    def state(self):
        return State(step_count=self.steps, scripts={{"gold": "3"}}, secret=42)
"""

APP = """\
{before}
from openenv.core.env_server import create_app

from models import CounterAction, CounterObservation
from server.counter_environment import CounterEnvironment

app = create_app(CounterEnvironment, CounterAction, CounterObservation, env_name="counter", max_concurrent_envs={limit})
"""

PYPROJECT = """\
[project]
name = "{name}"
version = "0.1.0"
dependencies = [{dependencies}]
"""


def package_files(
    name: str = "counter",
    *,
    in_reset: str = "pass",
    in_step: str = "pass",
    before_app: str = "",
    sessions: int = 64,
    limit: int | None = None,
    dependencies: tuple[str, ...] = ("openenv>=0.10",),
) -> dict[str, str]:
    """A counter: adds `amount`, done at 3. `in_reset` and `in_step` are statements (`observation` is at hand)."""
    quoted = ", ".join(f'"{dependency}"' for dependency in dependencies)
    return {
        "openenv.yaml": MANIFEST.format(name=name, sessions=sessions),
        "models.py": MODELS,
        "__init__.py": "",
        "server/__init__.py": "",
        "server/app.py": APP.format(before=before_app, limit=limit or sessions),
        "server/counter_environment.py": ENVIRONMENT.format(in_reset=_indented(in_reset), in_step=_indented(in_step)),
        "pyproject.toml": PYPROJECT.format(name=name, dependencies=quoted),
    }


def _indented(code: str) -> str:
    return code.strip().replace("\n", "\n        ")


async def prepared(host: EnvHost, files: dict[str, str]) -> str:
    """The hash of a package that the host is ready to serve."""
    hash_ = content_hash(files)
    await host.prepare(hash_, files)
    return hash_


async def prepared_once(host: EnvHost, process: HostProcess, files: dict[str, str]) -> str:
    """Like `prepared`, for a package whose virtual environment several test processes ask for: one of them builds."""
    with (process.data / "environments" / "build.lock").open("w") as building:
        await asyncio.to_thread(fcntl.flock, building, fcntl.LOCK_EX)
        return await prepared(host, files)
