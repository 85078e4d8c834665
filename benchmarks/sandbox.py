"""Measure what isolation costs: a sandboxed program, an environment server, a session and a frame.

Peers: a fresh Python interpreter without a sandbox; OpenEnv's GenericEnvClient on the same plain server.
Units: ms and executions/s; seconds per server; frames/s and µs of CPU per frame.
Repeats: 3, both sides in alternation.
"""

import asyncio
import functools
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from backend.core.loops import new_event_loop
from backend.domain.environments.manifest import Manifest, read_manifest
from backend.domain.environments.packages import MANIFEST_PATH, content_hash
from backend.domain.rollouts.rollout import task_of
from backend.domain.vocabulary import Split
from backend.environments.library import load_package
from backend.settings import PROJECT_ROOT, get_settings
from benchmarks.harness import (
    START_SECONDS,
    Measure,
    Options,
    alternate,
    installation,
    json_from,
    percentile,
    tree_cpu_seconds,
)
from proctor_sandbox import Limits, execute
from proctor_sandbox.probe import run_on_inputs
from workers.environments.client import EnvHost, EnvServer
from workers.environments.inside.shared_connection import PROTOCOL
from workers.environments.wire import PlainChannel, SharedChannel, SharedSocket, Wire

REPEATS = 3
PROGRAM = """
import collections, functools, itertools, json, math, random, re, string
words = re.findall(r"[a-z]+", input())
print(json.dumps(collections.Counter(words).most_common(3)), math.prod(range(1, 10)))
submit(functools.reduce(lambda total, n: total + n, itertools.islice(itertools.count(), 100)))
"""
ENVIRONMENT = "tictactoe"
STEP_SECONDS = 30.0
_SERVE = """
import socket, sys
project, name, folder, descriptor = sys.argv[1:]
sys.path.insert(0, project)
from workers.environments.inside.server import serve
request = {"name": name, "app": "server.app:app", "sessions": 64, "variables": {}, "branches": False}
serve(request, folder, socket.socket(fileno=int(descriptor)))
"""


def measure(options: Options) -> Iterator[Measure]:
    yield from _executions(options)
    files = load_package(ENVIRONMENT)
    environment = Environment(files, read_manifest(files[MANIFEST_PATH]), options.size(4000, 400))
    with installation():
        yield from asyncio.run(_env_host(environment, options))
    with _plain_server(files) as url:
        for sessions in (1, 32):
            cpu: dict[str, list[float]] = {"plain": [], "shared": [], "peer": []}
            sides: dict[str, Callable[[], float]] = {
                "plain": functools.partial(_wire_rate, environment, url, sessions, cpu["plain"], is_shared=False),
                "shared": functools.partial(_wire_rate, environment, url, sessions, cpu["shared"], is_shared=True),
                "peer": functools.partial(_openenv_rate, environment, url, sessions, cpu["peer"]),
            }
            rates = alternate(options.repeats, sides)
            name = f"frames without sandbox, {sessions} session{'s' * (sessions > 1)}"
            yield Measure(f"{name}, plain wire", "frames/s", rates["plain"], rates["peer"], higher_is_better=True)
            target = 4.0 if sessions == 32 else None
            yield Measure(
                f"{name}, one connection",
                "frames/s",
                rates["shared"],
                rates["peer"],
                higher_is_better=True,
                target_ratio=target,
            )
            for side, title in (("plain", "plain wire"), ("shared", "one connection")):
                yield Measure(f"CPU of client and server, {name}, {title}", "µs/frame", cpu[side], cpu["peer"])


@dataclass(frozen=True, slots=True)
class Environment:
    """A package whose observations list the legal choices; the first one is always played."""

    files: Mapping[str, str]
    manifest: Manifest
    frames: int
    """Frames to play for one value."""

    def choice(self, fields: Mapping[str, list[object]]) -> dict[str, object]:
        action = self.manifest.proctor.agent.action
        return {str(action.field): fields[str(action.choices)][0]}

    def reset_arguments(self, index: int) -> dict[str, object]:
        return task_of(self.manifest, Split.TRAIN, index).reset_arguments()


def _executions(options: Options) -> Iterator[Measure]:
    """One small program with common imports: alone, and from several threads."""
    _execute()  # starts the warm interpreter
    count = options.size(400, 40)
    alone = [sorted(_milliseconds(_execute) for _ in range(count)) for _ in range(options.repeats)]
    bare = [statistics.median(_milliseconds(_bare_interpreter) for _ in range(10)) for _ in range(options.repeats)]
    yield Measure("execute(), p50", "ms", [statistics.median(each) for each in alone], bare, target=6)
    yield Measure("execute(), p99", "ms", [percentile(each, 0.99) for each in alone])
    for callers in (1, 2, 4, 8):
        with ThreadPoolExecutor(callers) as pool:
            rates = []
            for _ in range(options.repeats):
                began = time.perf_counter()
                list(pool.map(lambda _: _execute(), range(count)))
                rates.append(count / (time.perf_counter() - began))
        name, target = f"execute(), {callers} caller{'s' * (callers > 1)}", 300 if callers == 4 else None
        yield Measure(name, "executions/s", rates, target=target, higher_is_better=True)
    _probe()
    probed = [
        statistics.median(_milliseconds(_probe) for _ in range(options.size(40, 5))) for _ in range(options.repeats)
    ]
    yield Measure("run_on_inputs(), 20 inputs, p50", "ms", probed, target=300)


def _probe() -> None:
    answers = run_on_inputs("def f(a, b):\n    return a + b\n", [f"[{n}, 1]" for n in range(20)], function="f")
    if [each.text for each in answers] != [str(n + 1) for n in range(20)]:
        raise RuntimeError(f"the program did not run: {answers}")


def _execute() -> None:
    result = execute(PROGRAM, stdin="to be or not to be\n", limits=Limits(seconds=10))
    if result.value != 4950:
        raise RuntimeError(f"the program did not run: {result}")


def _bare_interpreter() -> None:
    source = f"submit = print\n{PROGRAM}"
    subprocess.run([sys.executable, "-I", "-c", source], input=b"to be\n", stdout=subprocess.DEVNULL, check=True)


def _milliseconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - began)


async def _env_host(environment: Environment, options: Options) -> list[Measure]:
    """Servers, sessions and frames through the env host and its sandbox."""
    hash_ = content_hash(environment.files)
    async with EnvHost(get_settings().envhost_address) as host:

        async def prepare(number: int) -> None:
            variant = {**environment.files, "VARIANT.md": str(number)}
            await host.prepare(content_hash(variant), variant)

        first = await _seconds(host.prepare(hash_, environment.files))
        servers = [await _seconds(prepare(number)) for number in range(options.size(7, 2))]
        async with host.lease(hash_, environment.manifest.proctor.resources) as server:

            async def open_session() -> None:
                async with server.session() as session:
                    await session.reset(environment.reset_arguments(0), timeout=STEP_SECONDS)
                    session.wire.is_broken = True  # the pool must not hand it out again

            opened = [1000 * await _seconds(open_session()) for _ in range(options.size(50, 10))]
            measures = [
                Measure("first server, cold interpreter", "s", [first]),
                Measure("new server", "s", [statistics.median(servers)]),
                Measure("new session with reset", "ms", [statistics.median(opened)]),
            ]
            for sessions in (1, 8, 32):
                pairs = [await _frames(environment, server, sessions) for _ in range(options.repeats)]
                rates, cpu = zip(*pairs, strict=True)
                name = f"frames, {sessions} session{'s' * (sessions > 1)}"
                measures.append(Measure(name, "frames/s", rates, higher_is_better=True))
                measures.append(Measure(f"client CPU, {name}", "µs/frame", cpu))
    return measures


async def _seconds(work: Awaitable[None]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


async def _frames(environment: Environment, server: EnvServer, sessions: int) -> tuple[float, float]:
    """Return frames/s and the client's CPU time per frame in microseconds."""

    async def play(number: int) -> int:
        count, wanted = 0, environment.frames // sessions
        while count < wanted:
            async with server.session() as session:
                arguments = environment.reset_arguments(number * wanted + count)
                observation = await session.reset(arguments, timeout=STEP_SECONDS)
                count += 1
                while not observation.done:
                    observation = await session.step(environment.choice(observation.fields), timeout=STEP_SECONDS)
                    count += 1
        return count

    began, cpu = time.perf_counter(), time.process_time()
    total = sum(await asyncio.gather(*(play(number) for number in range(sessions))))
    return total / (time.perf_counter() - began), 1e6 * (time.process_time() - cpu) / total


@contextmanager
def _plain_server(files: Mapping[str, str]) -> Iterator[str]:
    """Serve the package as the env host does, without its sandbox and on loopback, which GenericEnvClient needs."""
    with tempfile.TemporaryDirectory(prefix="pb-") as folder, socket.create_server(("127.0.0.1", 0)) as listener:
        for path, text in files.items():
            (Path(folder) / ENVIRONMENT / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / ENVIRONMENT / path).write_text(text, encoding="utf-8")
        port = listener.getsockname()[1]
        process = subprocess.Popen(
            [_runtime(), "-P", "-c", _SERVE, str(PROJECT_ROOT), ENVIRONMENT, folder, str(listener.fileno())],
            pass_fds=(listener.fileno(),),
        )
        try:
            deadline = time.monotonic() + START_SECONDS
            while not _answers(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("the package's server did not start")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)


def _answers(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(START_SECONDS)  # the listening socket accepts before the server is up
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")
        return connection.recv(4096).startswith(b"HTTP/1.1 200")


def _runtime() -> str:
    return str(get_settings().runtime_python.absolute())


def _wire_rate(environment: Environment, url: str, sessions: int, cpu: list[float], *, is_shared: bool) -> float:
    """Return the frames/s of Proctor's own client, with a connection per session or one for all.

    Adds the µs of CPU per frame of client and server to `cpu`.
    """
    before = tree_cpu_seconds()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:  # as in a worker
        frames, rate = runner.run(_play_over_wires(environment, url, sessions, is_shared=is_shared))
    cpu.append(1e6 * (tree_cpu_seconds() - before) / frames)
    return rate


async def _play_over_wires(environment: Environment, url: str, sessions: int, *, is_shared: bool) -> tuple[int, float]:
    frames = environment.frames // sessions

    async def play(wire: Wire, number: int) -> int:
        count = 0
        while count < frames:
            observation = await wire.observe("reset", {"seed": number * frames + count}, STEP_SECONDS)
            count += 1
            while not observation.done:
                observation = await wire.observe("step", environment.choice(observation.fields), STEP_SECONDS)
                count += 1
        return count

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        shared = None
        if is_shared:
            shared = SharedSocket(await http.ws_connect(f"{url}/ws", protocols=(PROTOCOL,), compress=0))
            wires = [Wire(SharedChannel(shared)) for _ in range(sessions)]
        else:
            wires = [Wire(PlainChannel(await http.ws_connect(f"{url}/ws", compress=0))) for _ in range(sessions)]
        for wire in wires:
            await wire.observe("reset", {"seed": 1}, STEP_SECONDS)
        began = time.perf_counter()
        counts = await asyncio.gather(*(play(wire, number) for number, wire in enumerate(wires)))
        rate = sum(counts) / (time.perf_counter() - began)
        await asyncio.gather(*(wire.close() for wire in wires))
        if shared is not None:
            await shared.close()
        return sum(counts), rate


def _openenv_rate(environment: Environment, url: str, sessions: int, cpu: list[float]) -> float:
    action = environment.manifest.proctor.agent.action
    program = [_runtime(), "-P", str(PROJECT_ROOT / "benchmarks/peers.py"), "openenv"]
    arguments = [url, str(sessions), str(environment.frames), str(action.choices), str(action.field)]
    before = tree_cpu_seconds()
    played = json_from([*program, *arguments])
    cpu.append(1e6 * (tree_cpu_seconds() - before - played["other_cpu"]) / played["frames"])
    return float(played["frames_per_second"])
