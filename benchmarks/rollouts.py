"""Measure how fast rollouts are played and stored.

Peers: verifiers 0.3.1, which stores nothing; the openai client; a bare COPY of the same rows.
Units: rollouts/s, ms of CPU per rollout or model call, MB of peak memory.
Repeats: 3, both sides in alternation.

All play the same environment against the same endpoint, which answers at once. Proctor plays through its env host and
stores every rollout in Postgres. The first run installs verifiers into build/peers; without it, the peer is skipped.
"""

import asyncio
import json
import logging
import resource
import subprocess
import sys
import time
import uuid
import venv
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import psycopg
import structlog
from sqlalchemy import text

from backend.core.session import transaction
from backend.domain.environments.manifest import Manifest, read_manifest
from backend.domain.environments.packages import MANIFEST_PATH
from backend.domain.rollouts.rollout import Rollout, Step, task_of
from backend.domain.runs.plans import EvaluationPlan, Sampling
from backend.domain.vocabulary import Phase, RolloutStatus, RunKind, RunStatus, Split, StopReason
from backend.environments.library import load_package
from backend.environments.tables import EnvironmentVersion
from backend.runs.tables import Run
from backend.settings import PROJECT_ROOT
from benchmarks import peers
from benchmarks.harness import (
    Measure,
    Options,
    alternate,
    create_run,
    import_built_in,
    import_files,
    installation,
    json_from,
)
from workers.policies.base import EpisodeStart, Policy, Turn
from workers.policies.openai_api import Endpoint, OpenAiPolicy
from workers.policies.scripted import ScriptedPolicy
from workers.storage.recorder import RunRecorder
from workers.storage.rollouts import COLUMNS, row_of
from workers.tasks.evaluations import evaluate

REPEATS = 3
VERIFIERS = "0.3.1"
PEERS = Path(__file__).parent / "peers.py"
CONCURRENCY = 64
BATCH = 500
"""Rows that the recorder stores at once."""
MESSAGES = [{"role": "system", "content": "Reply."}, {"role": "user", "content": "abcde 1"}]

Figures = dict[str, float]
"""What one process measured: rollouts_per_second, cpu_ms, peak_mb, reward and errors."""


def measure(options: Options) -> Iterator[Measure]:
    peer = _verifiers()
    with installation(), _instant_endpoint() as url:
        for turns, count in ((1, options.size(2000, 200)), (5, options.size(500, 100))):
            version = import_files(f"turns_{turns}", _package(turns))
            yield from _against_verifiers(turns, count, version, peer, url, options)
            if turns == 1:
                long = options.size(20_000, 500)
                peak = json_from(_in_child(version, long, url))["peak_mb"]
                yield Measure(f"peak memory, {long:,} rollouts", "MB", [peak], target=250)
                yield _two_workers(options.size(6000, 300), version, url, options)
        yield _model_calls(url, options)
        yield from _scripted(options)


def _against_verifiers(
    turns: int, count: int, version: EnvironmentVersion, peer: Path | None, url: str, options: Options
) -> Iterator[Measure]:
    """Play on both sides, each in a fresh process."""
    ours: list[Figures] = []
    theirs: list[Figures] = []
    for _ in range(options.repeats):
        if peer is not None:
            program = [str(peer), str(PEERS), "verifiers", str(turns), str(count), str(CONCURRENCY), url]
            theirs.append(json_from(program, PEER_KEY="none", HF_HUB_OFFLINE="1"))
        ours.append(json_from(_in_child(version, count, url)))
    if any(each["errors"] for each in (*ours, *theirs)):
        raise RuntimeError(f"rollouts failed: {ours}, peer {theirs}")
    if theirs and abs(ours[0]["reward"] - theirs[0]["reward"]) > 0.01:
        raise RuntimeError(f"the rewards differ: {ours[0]['reward']}, peer {theirs[0]['reward']}")
    name = f"{turns} turn{'s' * (turns > 1)}, {count:,} rollouts at {CONCURRENCY}"
    both = {key: ([each[key] for each in ours], [each[key] for each in theirs]) for key in ours[0]}
    yield Measure(
        name, "rollouts/s", *both["rollouts_per_second"], higher_is_better=True, target_ratio=10 if turns == 1 else 12
    )
    yield Measure(f"CPU, {name}", "ms/rollout", *both["cpu_ms"])
    yield Measure(f"peak memory, {name}", "MB", *both["peak_mb"])


def _two_workers(count: int, version: EnvironmentVersion, url: str, options: Options) -> Measure:
    """Play in two processes at once, each in a separate run, with the same env host. Peer: one of them."""

    def rate_of(processes: int) -> float:
        children = [
            subprocess.Popen(
                [*_in_child(version, count, url), "wait"], cwd=PROJECT_ROOT, stdin=PIPE, stdout=PIPE, text=True
            )
            for _ in range(processes)
        ]
        outputs = [child.stdout for child in children if child.stdout is not None]
        for output in outputs:
            if not output.readline():
                raise RuntimeError("a worker ended before it played")
        began = time.perf_counter()
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.close()
        errors = sum(json.loads(output.readline())["errors"] for output in outputs)
        elapsed = time.perf_counter() - began
        if errors or any(child.wait() for child in children):
            raise RuntimeError(f"{errors} rollouts failed")
        return processes * count / elapsed

    rates = alternate(options.repeats, {"ours": lambda: rate_of(2), "peer": lambda: rate_of(1)})
    name = f"two workers, 1 turn, {count:,} rollouts each (peer: one worker)"
    return Measure(name, "rollouts/s", rates["ours"], rates["peer"], higher_is_better=True, target_ratio=1.7)


def _package(turns: int) -> dict[str, str]:
    return peers.package(turns, load_package("reverse_text")["server/rewards.py"])


def _in_child(version: EnvironmentVersion, count: int, url: str) -> list[str]:
    """Begin as workers do."""
    return [sys.executable, "-m", "workers.begin", "benchmarks.rollouts", str(version.id), str(count), url]


def _play_endpoint(version_id: uuid.UUID, count: int, url: str, *, waits: bool = False) -> Figures:
    """Play and store rollouts in this process; with `waits`, as soon as a line arrives on standard input."""
    with transaction() as session:
        version = session.get_one(EnvironmentVersion, version_id)
    endpoint = Endpoint(url, peers.MODEL)
    _play(version, OpenAiPolicy(endpoint, Sampling()), min(count, 32))  # warm up
    if waits:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
    cpu = time.process_time()
    summary = _play(version, OpenAiPolicy(endpoint, Sampling()), count)
    return {
        "rollouts_per_second": float(summary["rollouts_per_second"]),
        "cpu_ms": 1000 * (time.process_time() - cpu) / count,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "reward": summary["reward"]["mean"],
        "errors": count - summary["completed"],
    }


def _play(version: EnvironmentVersion, policy: Policy, count: int) -> dict[str, Any]:
    """Evaluate as a worker does, and return the run's summary."""
    plan = EvaluationPlan(tasks=count, concurrency=CONCURRENCY).model_dump(mode="json")
    run = create_run(version, RunKind.EVALUATION, RunStatus.QUEUED, configuration=plan)
    evaluate(run.id, policy)
    with transaction() as session:
        return dict(session.get_one(Run, run.id).summary)


def _model_calls(url: str, options: Options) -> Measure:
    count = options.size(3000, 300)
    sides = {
        "ours": lambda: asyncio.run(_cpu_of_policy(url, count)),
        "peer": lambda: asyncio.run(peers.cpu_of_openai(url, count, CONCURRENCY, MESSAGES)),
    }
    cpu = alternate(options.repeats, sides)
    return Measure("CPU, model call (peer: openai client)", "ms/call", cpu["ours"], cpu["peer"], target=0.6)


async def _cpu_of_policy(url: str, count: int) -> float:
    policy = OpenAiPolicy(Endpoint(url, peers.MODEL), Sampling())
    manifest = read_manifest(_package(1)[MANIFEST_PATH])
    player = await policy.begin(EpisodeStart(task_of(manifest, Split.TRAIN, 0), manifest, 0, seed=1))
    turn = Turn(0, MESSAGES, "abcde 1", {}, {}, {}, max_tokens=64)

    def call() -> Awaitable[object]:
        return player.act(turn)

    try:
        return await peers.cpu_of_calls(call, count, CONCURRENCY)
    finally:
        await policy.aclose()


def _scripted(options: Options) -> Iterator[Measure]:
    """Random tic-tac-toe, which needs no endpoint; then the write path on its own."""
    version, count = import_built_in("tictactoe"), options.size(3000, 200)
    _play(version, ScriptedPolicy("random"), 50)  # prepares the package
    rates, cpu = [], []
    for _ in range(options.repeats):
        before = time.process_time()
        summary = _play(version, ScriptedPolicy("random"), count)
        if summary["completed"] != count:
            raise RuntimeError(f"only {summary['completed']} of {count} rollouts completed")
        rates.append(float(summary["rollouts_per_second"]))
        cpu.append(1000 * (time.process_time() - before) / count)
    yield Measure("random tic-tac-toe", "rollouts/s", rates, higher_is_better=True)
    yield Measure("CPU, random tic-tac-toe", "ms/rollout", cpu)

    manifest = Manifest.model_validate(version.manifest)
    rollouts = [sample_rollout(manifest, index) for index in range(options.size(5000, 1000))]
    with transaction() as session:
        session.execute(text(f"CREATE TABLE bare AS SELECT {', '.join(COLUMNS)} FROM rollouts LIMIT 0"))

    def write_path() -> float:
        run = create_run(version, RunKind.EVALUATION, RunStatus.RUNNING)
        return _rate(RunRecorder(run.id).store, rollouts)

    def bare_copy() -> float:
        rows = [row_of(uuid.uuid4(), rollout, manifest.column_names) for rollout in rollouts]
        return _rate(_copy, rows)

    stored = alternate(options.repeats, {"ours": write_path, "peer": bare_copy})
    name = f"write path, batches of {BATCH} (peer: bare COPY)"
    yield Measure(name, "rollouts/s", stored["ours"], stored["peer"], higher_is_better=True, target_ratio=0.5)


def _rate(write: Callable[[list[Any]], object], rows: list[Any]) -> float:
    began = time.perf_counter()
    for first in range(0, len(rows), BATCH):
        write(rows[first : first + BATCH])
    return len(rows) / (time.perf_counter() - began)


def _copy(rows: list[list[object]]) -> None:
    """Store encoded rows in a table without indexes, locks or checks: as fast as Postgres goes."""
    with transaction() as session:
        driver = session.connection().connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        with driver.cursor() as cursor, cursor.copy("COPY bare FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)


def sample_rollout(manifest: Manifest, index: int) -> Rollout:
    """Return a rollout of tic-tac-toe: four turns, about 2 KB."""
    observation = {"board": "XO.......", "message": "1 2 3\n4 X 6\n7 8 O\nYour move?", "legal_moves": [1, 2, 3, 4, 6]}
    step = Step("<move>5</move>", {"cell": 5}, observation, str(observation["message"]), {"win": 0.0}, False)
    messages = [{"role": "user", "content": step.text}, {"role": "assistant", "content": step.reply}] * 4
    return Rollout(
        task_of(manifest, Split.TRAIN, index),
        Phase.EVALUATION,
        index,
        0,
        RolloutStatus.COMPLETED,
        StopReason.DONE,
        reward=0.2,
        columns={"win": 0.0, "format": 1.0},
        opening=observation,
        steps=[step] * 4,
        messages=messages,
    )


@contextmanager
def _instant_endpoint() -> Iterator[str]:
    """Start the endpoint in a separate process and return its address."""
    with subprocess.Popen([sys.executable, PEERS, "endpoint"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()


def _verifiers() -> Path | None:
    """Return the interpreter of verifiers' virtual environment, whose pins conflict with Proctor's. Install it once."""
    folder = PROJECT_ROOT / "build" / "peers" / f"verifiers-{VERIFIERS}"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        venv.create(folder, with_pip=True)
        install = [str(python), "-m", "pip", "install", "-qq", f"verifiers=={VERIFIERS}", "uvloop"]
        if subprocess.run(install, check=False).returncode:
            return None
        (folder / "ready").touch()
    return python


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    version_id, count, url, *wait = sys.argv[1:]
    figures = _play_endpoint(uuid.UUID(version_id), int(count), url, waits=bool(wait))
    sys.stdout.write(json.dumps(figures) + "\n")
