"""Our client of the wire and OpenEnv's GenericEnvClient against one and the same server, in turn.

The server is OpenEnv's own on loopback, without a sandbox, because GenericEnvClient reaches nothing but TCP.
"""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import aiohttp

from backend.domain.environments.manifest import Manifest
from backend.settings import PROJECT_ROOT, get_settings
from workers.environments.wire import Wire

ROUNDS = 3
START_SECONDS = 60.0
SECONDS = 30.0


async def rates(files: Mapping[str, str], manifest: Manifest, sessions: int, frames: int) -> tuple[float, float]:
    """Frames a second of our client and of theirs: each the best of some rounds, which take turns."""
    with _server(files) as url:
        ours, theirs = [], []
        for _ in range(ROUNDS):
            ours.append(await _our_rate(url, manifest, sessions, frames))
            theirs.append(await asyncio.to_thread(_their_rate, url, manifest, sessions, frames))
        return max(ours), max(theirs)


@contextmanager
def _server(files: Mapping[str, str]) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="pb-") as folder, socket.create_server(("127.0.0.1", 0)) as listener:
        for path, text in files.items():
            (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / path).write_text(text, encoding="utf-8")
        options = ("--fd", str(listener.fileno()), "--log-level", "warning", "--no-access-log")
        process = subprocess.Popen(
            [str(get_settings().runtime_python.absolute()), "-m", "uvicorn", "server.app:app", *options],
            cwd=folder,
            pass_fds=(listener.fileno(),),
            env={**os.environ, "PYTHONPATH": str(PROJECT_ROOT)},  # noqa: TID251 - for the sandbox's client
        )
        port = listener.getsockname()[1]
        try:
            _wait(port, process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)


def _wait(port: int, process: "subprocess.Popen[bytes]") -> None:
    """Until it answers: the socket takes connections before the server is there."""
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.settimeout(START_SECONDS)
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")
            if connection.recv(4096).startswith(b"HTTP/1.1 200"):
                return
    raise RuntimeError("the package's server did not start")


async def _our_rate(url: str, manifest: Manifest, sessions: int, frames: int) -> float:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        wires = [Wire(await http.ws_connect(f"{url}/ws", compress=0)) for _ in range(sessions)]
        for wire in wires:
            await wire.reset({"seed": 1}, SECONDS)
        begun = time.perf_counter()
        each = frames // sessions
        counts = await asyncio.gather(*(_play(wire, manifest, each, n) for n, wire in enumerate(wires)))
        rate = sum(counts) / (time.perf_counter() - begun)
        await asyncio.gather(*(wire.close() for wire in wires))
        return rate


async def _play(wire: Wire, manifest: Manifest, frames: int, number: int) -> int:
    action, count = manifest.proctor.agent.action, 0
    while count < frames:
        observation = await wire.reset({"seed": number * frames + count}, SECONDS)
        count += 1
        while not observation.done:
            choice = observation.fields[str(action.choices)][0]
            observation = await wire.step({str(action.field): choice}, SECONDS)
            count += 1
    return count


def _their_rate(url: str, manifest: Manifest, sessions: int, frames: int) -> float:
    action = manifest.proctor.agent.action
    program = [str(get_settings().runtime_python.absolute()), "-P", str(PROJECT_ROOT / "benchmarks/generic_client.py")]
    arguments = [url, str(sessions), str(frames), str(action.choices), str(action.field)]
    done = subprocess.run([*program, *arguments], stdout=subprocess.PIPE, stderr=sys.stderr, text=True, check=True)
    return float(done.stdout)
