"""Shared parts of the benchmarks: measures, a temporary installation, child processes, users and runs."""

import json
import math
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
from alembic import command
from alembic.config import Config
from rich.console import Console
from rich.table import Table

from backend.core.embedded import Postgres
from backend.core.session import forget_engine, transaction
from backend.domain.environments.manifest import Manifest
from backend.domain.ids import new_id
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import PolicyKind, Role, RunKind, RunStatus
from backend.environments.library import load_package
from backend.environments.service import import_package
from backend.environments.tables import EnvironmentVersion
from backend.policies.tables import Policy
from backend.runs.tables import Run
from backend.settings import PROJECT_ROOT, get_settings
from backend.team.tables import Person, WebSession
from backend.web.identity import SESSION_COOKIE, hash_secret, new_secret

START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a benchmark run."""

    repeats: int
    is_quick: bool = False
    data: Path | None = None
    """Folder with third-party collections, for benchmarks that need them."""

    def size(self, full: int, quick: int) -> int:
        """Return the size to measure with: small if the run only has to prove that the benchmark works."""
        return quick if self.is_quick else full


@dataclass(frozen=True, slots=True)
class Measure:
    """One row of a benchmark's table: a quantity, with the same quantity of the peer if there is one."""

    name: str
    unit: str
    values: Sequence[float]
    """One value per repeat."""
    peer: Sequence[float] = ()
    """One value per repeat, measured in alternation with `values`."""
    higher_is_better: bool = False
    target: float | None = None
    """Bound on the median: a minimum if higher is better, else a maximum."""
    target_ratio: float | None = None
    """Bound on the ratio to the peer, in the same direction."""
    note: str = ""
    """Detail for the reader. Comparisons pair measures by name, so what may vary belongs here."""

    @property
    def median(self) -> float:
        """NaN without values: a row that only states, in its note, why nothing was measured."""
        return statistics.median(self.values) if self.values else math.nan

    @property
    def ratio(self) -> float | None:
        """Median of the repeats' ratios to the peer. Repeats are paired if both sides have the same number."""
        if not self.peer or not statistics.median(self.peer):
            return None
        if len(self.peer) == len(self.values) and all(self.peer):
            return statistics.median(ours / theirs for ours, theirs in zip(self.values, self.peer, strict=True))
        return self.median / statistics.median(self.peer)

    @property
    def misses_target(self) -> bool:
        bounds = ((self.median, self.target), (self.ratio, self.target_ratio))
        return any(
            value is not None and bound is not None and (value < bound if self.higher_is_better else value > bound)
            for value, bound in bounds
        )


def print_table(console: Console, title: str, measures: Sequence[Measure]) -> None:
    """Print the benchmark's one table: medians, with the range of the repeats in parentheses."""
    console.print(title, highlight=False)
    table = Table(box=None, padding=(0, 3, 0, 0))
    for column in ("measure", "unit", "Proctor", "peer", "ratio", "target", ""):
        is_text = column in {"measure", "unit", ""}
        table.add_column(column, justify="left" if is_text else "right", no_wrap=column in {"measure", "unit"})
    for measure in measures:
        sign = "≥" if measure.higher_is_better else "≤"
        targets = [f"{sign} {measure.target:,g}"] if measure.target is not None else []
        targets += [f"{sign} {measure.target_ratio:g} ×"] if measure.target_ratio is not None else []
        ratio = f"{measure.ratio:.2f} ×" if measure.ratio is not None else ""
        target = ", ".join(targets) + (" missed" if measure.misses_target else "")
        values, peer = format_range(measure.values), format_range(measure.peer)
        table.add_row(measure.name, measure.unit, values, peer, ratio, target, measure.note)
    console.print(table)
    load = f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    console.print(f"Medians of the repeats, with their range. {load}.", style="dim", highlight=False)


def format_range(values: Sequence[float]) -> str:
    if not values:
        return ""
    digits = 3 if max(values) < 1 else 2 if max(values) < 10 else 1 if max(values) < 100 else 0
    low, middle, high = (f"{value:,.{digits}f}" for value in (min(values), statistics.median(values), max(values)))
    return middle if low == high else f"{middle} ({low}–{high})"


def as_json(measures: Sequence[Measure]) -> list[dict[str, Any]]:
    return [asdict(measure) | {"median": measure.median, "ratio": measure.ratio} for measure in measures]


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def alternate(repeats: int, sides: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Measure every side once per repeat, so that other load on the machine meets all of them alike."""
    values: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, measure in sides.items():
            values[name].append(measure())
    return values


def tree_cpu_seconds() -> float:
    """Return the CPU seconds of this process and all processes below it, such as Postgres and the env host.

    Unlike the clock, this hardly depends on what else the machine is doing.
    """
    parent_field, first_time_field = 1, 11  # of /proc/<pid>/stat, counted after the command's name
    children: dict[int, list[int]] = defaultdict(list)
    seconds: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # the process has ended
        pid = int(path.parent.name)
        children[int(fields[parent_field])].append(pid)
        ticks = sum(map(int, fields[first_time_field : first_time_field + 4]))
        seconds[pid] = ticks / os.sysconf("SC_CLK_TCK")
    total, waiting = 0.0, [os.getpid()]
    while waiting:
        pid = waiting.pop()
        total += seconds.get(pid, 0.0)
        waiting += children[pid]
    return total


@contextmanager
def installation(kept: Path | None = None) -> Iterator[Path]:
    """Start Postgres and an env host in a temporary folder. This process and its children use them.

    `kept`: a folder that is used instead, with the data that it has, and stays.
    """
    folder = kept or Path(tempfile.mkdtemp(prefix="pb-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with _postgres(folder), _env_host(folder / "envhost.log"):
            yield folder
    finally:
        forget_engine()
        if kept is None:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _postgres(folder: Path) -> Iterator[None]:
    sockets = folder / "run"
    sockets.mkdir(exist_ok=True)
    postgres = Postgres(folder / "postgres", sockets, folder / "postgres.log")
    postgres.start()
    try:
        chosen = {"PROCTOR_DATA": str(folder), "DATABASE_URL": postgres.url(), "PROCTOR_STAGE": "test"}
        os.environ.update(chosen)  # noqa: TID251 - settings are read from the environment, here and in children
        get_settings.cache_clear()
        config = Config(PROJECT_ROOT / "alembic.ini")
        config.set_main_option("sqlalchemy.url", postgres.url().replace("%", "%%"))
        command.upgrade(config, "head")
        yield
    finally:
        forget_engine()
        postgres.stop()


@contextmanager
def _env_host(log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        module = [sys.executable, "-m", "workers.environments.host"]
        host = subprocess.Popen(module, cwd=PROJECT_ROOT, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + START_SECONDS
        while b"env host is ready" not in log.read_bytes():
            if host.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the env host did not start:\n{log.read_text()}")
            time.sleep(0.02)
        yield
    finally:
        host.terminate()
        host.wait(20)


@contextmanager
def web() -> Iterator[str]:
    """Serve the application from a separate process and return its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = [sys.executable, "-m", "uvicorn", "backend.app:create_app", "--factory", "--port", str(port)]
    process = subprocess.Popen([*server, "--log-level", "warning"], cwd=PROJECT_ROOT)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(f"{url}/healthz", process, START_SECONDS)
        yield url
    finally:
        process.kill()
        process.wait()


def wait_for(url: str, process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait until a server answers. Raises RuntimeError if its process ends first or takes longer than `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(httpx.TransportError):
            if httpx.get(url).status_code == HTTPStatus.OK:
                return
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the server of {url} did not start")
        time.sleep(0.05)


def sign_in(role: Role) -> tuple[dict[str, str], dict[str, str]]:
    """Create a user with a web session. Returns the cookies and the headers of its requests."""
    secret, csrf = new_secret(), new_secret()
    with transaction() as session:
        user = Person(email=f"{secret[:8]}@example.org", name="Ada", role=role)
        session.add(user)
        session.flush()
        expires_at = datetime.now(UTC) + timedelta(days=1)
        session.add(
            WebSession(person_id=user.id, token_hash=hash_secret(secret), csrf_token=csrf, expires_at=expires_at)
        )
    return {SESSION_COOKIE: secret}, {"X-CSRF-Token": csrf}


def import_built_in(name: str) -> EnvironmentVersion:
    return import_files(name, load_package(name))


def import_files(name: str, files: Mapping[str, str]) -> EnvironmentVersion:
    with transaction() as session:
        version = import_package(session, name, dict(files))
        assert version is not None, f"{name} was imported before"
        return version


def create_run(version: EnvironmentVersion, kind: RunKind, status: RunStatus, **fields: Any) -> Run:
    """Store a run with the reward columns of the version's manifest."""
    columns = Manifest.model_validate(version.manifest).columns
    run = Run(
        kind=kind,
        status=status,
        name="benchmark",
        version_id=version.id,
        columns=[column.name for column in columns],
        weights=[column.weight for column in columns],
    )
    for name, value in fields.items():
        setattr(run, name, value)
    with transaction() as session:
        session.add(run)
    return run


def create_training_run(version: EnvironmentVersion, configuration: TrainingConfiguration) -> Run:
    """Store a training run as if a worker had claimed it."""
    with transaction() as session:
        policy = Policy(name=f"benchmark {new_id()}", kind=PolicyKind.LOCAL, configuration={})
        session.add(policy)
    return create_run(
        version,
        RunKind.TRAINING,
        RunStatus.RUNNING,
        policy_id=policy.id,
        checkpoint_id=configuration.model.checkpoint,
        configuration=configuration.resolved(),
        seed=configuration.seed,
        attempt=1,
    )


def json_from(program: Sequence[str | Path], **environment: str) -> Any:
    """Run a program in the repository and return its last line of output, which is JSON."""
    variables = {**os.environ, "PYTHONWARNINGS": "ignore", **environment}  # noqa: TID251 - for a child
    done = subprocess.run(program, cwd=PROJECT_ROOT, env=variables, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout.strip():
        raise RuntimeError(f"{' '.join(map(str, program[:4]))} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])
