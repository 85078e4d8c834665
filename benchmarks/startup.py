"""Measure how long `proctor up` takes to the first page, to the first finished job and to a full stop.

Peer: none.
Unit: seconds from the command, or from Ctrl-C to the end of the last process.
Repeats: 3 starts with an empty data folder (cold) and 3 with the folder of the first start (warm). Modules are compiled
before, as by `make setup`.
"""

import json
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import httpx

from backend.settings import PROJECT_ROOT
from benchmarks.harness import Measure, Options

REPEATS = 3
TIMEOUT_SECONDS = 120.0
TARGETS = {("cold", "first page"): 8.0, ("warm", "first page"): 3.0, ("warm", "first job"): 4.0}
"""Seconds on a quiet machine."""


def measure(options: Options) -> Iterator[Measure]:
    code = [str(PROJECT_ROOT / name) for name in ("backend", "migrations", "proctor", "proctor_sandbox", "workers")]
    subprocess.run([sys.executable, "-m", "compileall", "-q", *code], check=True)
    seconds: dict[tuple[str, str], list[float]] = {}
    for _ in range(options.repeats):
        folder = Path(tempfile.mkdtemp(prefix="pb-"))  # a short path, because it holds sockets
        try:
            for kind in ("cold", "warm"):
                for name, value in _start(folder / "data").items():
                    seconds.setdefault((kind, name), []).append(value)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    for (kind, name), values in seconds.items():
        yield Measure(f"{name}, {kind}", "s", values, target=TARGETS.get((kind, name)))


def _start(data: Path) -> dict[str, float]:
    """Start everything, wait for a page and a job, and stop it."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "backend.cli", "up", "--json", "--data", str(data), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = _address(process.stdout)
            httpx.get(url, follow_redirects=True, timeout=TIMEOUT_SECONDS).raise_for_status()
            first_page = time.perf_counter() - began
            _run_job(url, data)
            first_job = time.perf_counter() - began
        finally:
            process.send_signal(signal.SIGINT)
            interrupted = time.perf_counter()
            process.stdout.read()
            process.wait(60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    stop = time.perf_counter() - interrupted
    return {"first page": first_page, "first job": first_job, "stop": stop, "CPU of all processes": cpu}


def _address(lines: Iterable[str]) -> str:
    for line in lines:
        event = json.loads(line)
        if event["event"] == "address":
            return str(event["url"])
    raise RuntimeError("proctor ended before it served")


def _run_job(url: str, data: Path) -> None:
    """Evaluate one scripted episode: queue, worker, env host, sandbox and rows."""
    deadline = time.perf_counter() + TIMEOUT_SECONDS
    with httpx.Client(base_url=f"{url}/api/v1", timeout=TIMEOUT_SECONDS) as client:
        while True:  # the token and the built-in environments appear while the web starts
            token = data / "cli-token"
            client.headers["Authorization"] = f"Bearer {token.read_text().strip() if token.exists() else '-'}"
            response = client.get("/environments/reverse_text")
            if response.status_code not in {401, 404}:
                break
            _wait(deadline)
        version = response.raise_for_status().json()["latest"]["id"]
        policies = {policy["name"]: policy["id"] for policy in client.get("/policies").json()["items"]}
        body = {"version_id": version, "policy_id": policies["gold"], "tasks": 1, "key": uuid.uuid4().hex}
        run = client.post("/evaluations", json=body).raise_for_status().json()
        while run["status"] in {"queued", "running"}:
            _wait(deadline)
            run = client.get(f"/runs/{run['id']}").json()
        if run["status"] != "completed":
            raise RuntimeError(f"the first job ended {run['status']}: {run['reason']}")


def _wait(deadline: float) -> None:
    if time.perf_counter() > deadline:
        raise RuntimeError(f"no result after {TIMEOUT_SECONDS:.0f} s")
    time.sleep(0.02)
