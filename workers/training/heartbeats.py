"""Signs of life of a run's ranks: small files in the run's folder, which the launchers of all its nodes watch.

A rank whose thread still reports is alive but may be stuck; its sign then says what it has been doing, and since when.
"""

import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from proctor_sandbox.memory import descendants

LAUNCHER = "RANKS_LAUNCHED_BY"  # environment variable of ranks with their launcher's process id
FOLDER = "ranks/signs"
REPORT_SECONDS = 1.0
WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class Sign:
    rank: int
    doing: str
    seconds: float
    """How long it has been doing that."""

    def __str__(self) -> str:
        return f"rank {self.rank}: {self.doing} for {self.seconds:.0f} s"


class Activity:
    """The current activity of this rank, reported by its main thread."""

    def __init__(self) -> None:
        self._doing, self._since = "starting", time.monotonic()

    def begin(self, doing: str) -> None:
        self._doing, self._since = doing, time.monotonic()

    @contextmanager
    def during(self, doing: str) -> Iterator[None]:
        before = self._doing
        self.begin(doing)
        try:
            yield
        finally:
            self.begin(before)

    def report(self, rank: int, folder: Path) -> None:
        """Renew this rank's sign. A full disk leaves its old text. Nothing happens without the folder."""
        path = folder / FOLDER / str(rank)
        sign = Sign(rank, self._doing, time.monotonic() - self._since)
        partial = path.with_name(f".{rank}.partial")
        try:
            partial.write_text(json.dumps(asdict(sign)))
            partial.replace(path)
        except OSError:
            with suppress(OSError):  # the run has finished and its folder is deleted
                path.touch()


ACTIVITY = Activity()


def read_signs(folder: Path) -> list[Sign]:
    """Return the latest signs of all ranks, in order."""
    signs = []
    for path in (folder / FOLDER).glob("[0-9]*"):
        try:
            signs.append(Sign(**json.loads(path.read_text())))
        except (OSError, ValueError, TypeError):  # it is being replaced, or its disk was full
            continue
    return sorted(signs, key=lambda sign: sign.rank)


def suspects(signs: list[Sign]) -> list[Sign]:
    """Return the ranks that others wait for: all that are busy while some wait."""
    busy = [sign for sign in signs if not sign.doing.startswith(WAITING)]
    return busy if len(busy) < len(signs) else []


class SignWatch(threading.Thread):
    """Ends this node's ranks if a rank of any node gives no sign for `limit` seconds. `silent` then names it.

    Each of the `count` ranks has `start_limit` seconds for its first sign. Signs count as new if their file changed, so
    that the nodes' clocks may differ.
    """

    def __init__(
        self, folder: Path, limit: float, end: Callable[[], None], *, count: int = 0, start_limit: float = math.inf
    ) -> None:
        super().__init__(name="signs of ranks", daemon=True)
        self._folder, self._limit, self._end = folder, limit, end
        self._count, self._start_limit = count, start_limit
        self._seen: dict[int, tuple[int, float]] = {}
        self._left = threading.Event()
        self.silent: str | None = None

    def leave(self) -> None:
        self._left.set()
        self.join()

    def run(self) -> None:
        began = time.monotonic()
        while not self._left.wait(REPORT_SECONDS):
            now = time.monotonic()
            for path in (self._folder / FOLDER).glob("[0-9]*"):
                try:
                    changed = path.stat().st_mtime_ns
                except FileNotFoundError:
                    continue
                rank = int(path.name)
                if self._seen.get(rank, (0, 0.0))[0] != changed:
                    self._seen[rank] = changed, now
            for rank, (_, seen_at) in self._seen.items():
                if now - seen_at > self._limit:
                    last = next((sign.doing for sign in read_signs(self._folder) if sign.rank == rank), "starting")
                    self.silent = (
                        f"rank {rank} has given no sign of life for {now - seen_at:.0f} seconds "
                        f"(hardware.rank_timeout). It hangs, or its machine is gone. Last activity: {last}"
                    )
                    self._end()
                    return
            missing = [rank for rank in range(self._count) if rank not in self._seen]
            if missing and now - began > self._start_limit:
                names = f"rank{'s' if missing[1:] else ''} {', '.join(map(str, missing))}"
                self.silent = (
                    f"{names} gave no sign of life within {now - began:.0f} seconds of the start "
                    "(hardware.start_timeout). Check that the GPU is free and its driver responds, that the machine has"
                    " memory, and that Python can read its packages; raise the limit if they are on a slow disk"
                )
                self._end()
                return


def kill_ranks() -> None:
    """Kill the ranks that this process launched, also stopped ones."""
    mark = f"{LAUNCHER}={os.getpid()}".encode()
    for pid in descendants(os.getpid())[1:]:
        with suppress(ProcessLookupError, FileNotFoundError):
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                os.kill(pid, signal.SIGKILL)
