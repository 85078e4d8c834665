"""Run other programs within bounds: limits from the first instruction, and the whole process group ends with them."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from proctor_sandbox.memory import descendants

_LAUNCHER = Path(__file__).with_name("bounded_command.py")
_WATCH_SECONDS = 0.1


class CommandStopped(RuntimeError):
    """A command went beyond one of its bounds and was killed, with its process group."""


@dataclass(frozen=True, slots=True)
class Bounds:
    seconds: float
    output_bytes: int = 16 << 20
    """Printed, in all."""
    written_bytes: int | None = None
    """Written to files and pipes by the command itself, in all. Linux only."""
    memory_bytes: int | None = None
    """Memory of all its processes together. Linux only."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Resource limits of each process by name, such as `AS` or `CPU`; never a core file."""


@dataclass(frozen=True, slots=True)
class Finished:
    status: int
    output: str
    errors: str


async def run_command(
    command: Sequence[str],
    bounds: Bounds,
    *,
    given: str = "",
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    pass_fds: Sequence[int] = (),
) -> Finished:
    """Run a command that reads `given`. Raises CommandStopped.

    Output goes through files: a process that the command left behind cannot keep us waiting by holding a pipe open.
    """
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write(given.encode())
        stdin.seek(0)
        process = await asyncio.create_subprocess_exec(
            *bounded(command, bounds.limits),
            env=environment,
            cwd=folder,
            pass_fds=pass_fds,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(bounds.seconds):
                await _watch(process, bounds, (stdout, stderr))
        except TimeoutError:
            raise CommandStopped(f"it took longer than {bounds.seconds:g} s") from None
        finally:
            await end_group(process)
        assert process.returncode is not None
        for file in (stdout, stderr):
            file.seek(0)
        output, errors = (file.read(bounds.output_bytes).decode(errors="replace") for file in (stdout, stderr))
        return Finished(process.returncode, output, errors)


def bounded(command: Sequence[str], limits: Mapping[str, int]) -> list[str]:
    """The command line that sets the limits first, and ends with this process."""
    stated = json.dumps({"CORE": 0, **limits})
    return [sys.executable, "-I", "-S", "-B", str(_LAUNCHER), str(os.getpid()), stated, *command]


async def end_group(process: asyncio.subprocess.Process) -> None:
    """Kill a command that was started in its own session, and everything in its process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def resident_bytes(pid: int) -> int:
    """Resident memory of one process; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def used_bytes(pids: list[int], allowed: int = 0) -> int:
    """Memory of several processes together, shared pages once (PSS). Only root may read that; else the sum of each.

    If even the sum, which is cheap to read, is at most `allowed`, it is the answer.
    """
    total, resident = 0, sum(map(resident_bytes, pids))
    if resident <= allowed:
        return resident
    try:
        for pid in pids:
            try:
                text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            total += next((int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:")), 0)
    except PermissionError:
        return resident
    return total


async def _watch(process: asyncio.subprocess.Process, bounds: Bounds, outputs: Sequence[IO[bytes]]) -> None:
    """Wait for the command and check its output periodically. Raises CommandStopped."""
    ended = asyncio.ensure_future(process.wait())
    counters = Path(f"/proc/{process.pid}/io")
    try:
        while True:
            is_over = bool((await asyncio.wait({ended}, timeout=_WATCH_SECONDS))[0])
            if sum(os.fstat(file.fileno()).st_size for file in outputs) > bounds.output_bytes:
                raise CommandStopped(f"it printed more than {bounds.output_bytes >> 10:,} KB")
            if is_over:
                return
            if bounds.memory_bytes and used_bytes(descendants(process.pid), bounds.memory_bytes) > bounds.memory_bytes:
                raise CommandStopped(f"it used more than {bounds.memory_bytes >> 20} MB of memory")
            if bounds.written_bytes is not None:
                with contextlib.suppress(OSError):  # it has ended, or this is not Linux
                    lines = counters.read_text().splitlines()
                    written = next((int(line.split()[1]) for line in lines if line.startswith("wchar:")), 0)
                    if written > bounds.written_bytes:
                        raise CommandStopped(f"it wrote more than {bounds.written_bytes >> 20:,} MB")
    finally:
        ended.cancel()
