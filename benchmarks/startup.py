"""How long `proctor up` takes to the first page and to the first result of a job, with empty and with set-up data.

python -m benchmarks.startup [--repeat 3]
"""

import argparse
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

TARGETS = {
    ("cold", "first_page"): 8.0,
    ("warm", "first_page"): 3.0,
    ("warm", "first_job"): 4.0,
}
"""Seconds asked for, on a quiet machine."""
TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds from the command to each, as a person would wait."""

    first_page: float
    first_job: float
    stopped: float
    """From Ctrl-C to the end of the last process."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3, help="starts of each kind")
    repeat = parser.parse_args().repeat
    timings: dict[str, list[Timing]] = {"cold": [], "warm": []}
    for _ in range(repeat):
        with _folder() as data:
            timings["cold"].append(measure(data))
            timings["warm"].append(measure(data))
    return _tell(timings)


def measure(data: Path) -> Timing:
    began = time.perf_counter()
    command = [sys.executable, "-m", "backend.cli", "up", "--json", "--data", str(data), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = _address(process.stdout)
            _first_page(url)
            first_page = time.perf_counter() - began
            _first_job(url, data)
            first_job = time.perf_counter() - began
        finally:
            process.send_signal(signal.SIGINT)
            asked = time.perf_counter()
            process.stdout.read()
            process.wait(60)
    return Timing(first_page, first_job, time.perf_counter() - asked)


def _address(lines: Any) -> str:
    for line in lines:
        event = json.loads(line)
        if event["event"] == "address":
            return str(event["url"])
    raise RuntimeError("it ended before it served")


def _first_page(url: str) -> None:
    response = httpx.get(url, follow_redirects=True, timeout=TIMEOUT_SECONDS)
    response.raise_for_status()


def _first_job(url: str, data: Path) -> None:
    """One scripted episode of a built-in environment: queue, worker, env host, sandbox, rows."""
    deadline = time.perf_counter() + TIMEOUT_SECONDS
    with httpx.Client(base_url=f"{url}/api/v1", timeout=TIMEOUT_SECONDS) as client:
        environment = _when_there(client, data, "/environments/reverse_text", deadline)
        policies = {policy["name"]: policy["id"] for policy in client.get("/policies").json()["items"]}
        body = {"version_id": environment["latest"]["id"], "policy_id": policies["gold"], "tasks": 1}
        run = client.post("/evaluations", json={**body, "key": uuid.uuid4().hex}).raise_for_status().json()
        while run["status"] in {"queued", "running"}:
            _expect(time.perf_counter() < deadline, "the first job took too long")
            time.sleep(0.02)
            run = client.get(f"/runs/{run['id']}").json()
        _expect(run["status"] == "completed", f"the first job ended {run['status']}: {run['reason']}")


def _headers(data: Path) -> dict[str, str]:
    token = data / "cli-token"
    return {"Authorization": f"Bearer {token.read_text().strip() if token.exists() else 'not yet'}"}


def _when_there(client: httpx.Client, data: Path, path: str, deadline: float) -> Any:
    """This start's token and the built-in environments arrive while the web starts."""
    while (response := client.get(path, headers=_headers(data))).status_code in {401, 404}:
        _expect(time.perf_counter() < deadline, f"{path} did not appear")
        time.sleep(0.02)
    client.headers.update(_headers(data))
    return response.raise_for_status().json()


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise RuntimeError(otherwise)


def _tell(timings: dict[str, list[Timing]]) -> int:
    table = Table(title="proctor up: median seconds [all]", box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in ("data", "figure", "asked", "seen"):
        table.add_column(column)
    missed = 0
    for kind, measured in timings.items():
        for figure in ("first_page", "first_job", "stopped"):
            values = sorted(getattr(timing, figure) for timing in measured)
            median = statistics.median(values)
            target = TARGETS.get((kind, figure))
            missed += target is not None and median > target
            every = ", ".join(f"{value:.2f}" for value in values)
            table.add_row(kind, figure.replace("_", " "), f"≤ {target:g}" if target else "", f"{median:.2f} [{every}]")
    Console(soft_wrap=True).print(table)
    return 1 if missed else 0


@contextmanager
def _folder() -> Iterator[Path]:
    """A short path: sockets lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="pb-"))
    try:
        yield folder / "data"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
