"""`proctor up` as a separate process, whose events the tests wait for."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 90.0
"""Generous: the machine may be busy."""
EMBEDDED = {"DATABASE_URL": "", "REDIS_URL": ""}
"""Other tests of this process may have pointed these at their own servers."""


class ProctorProcess:
    def __init__(
        self, data: Path, *arguments: str, environment: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
    ) -> None:
        self.data = data
        self.events: list[dict[str, Any]] = []
        self._arriving: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.process = subprocess.Popen(
            [
                *prefix,
                sys.executable,
                "-m",
                "backend.cli",
                "up",
                "--json",
                "--data",
                str(data),
                "--port",
                "0",
                *arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **EMBEDDED, **(environment or {})},  # noqa: TID251 - a child's environment
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, event: str, **details: object) -> dict[str, Any]:
        """The first event of this name with these details, also when it came before."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        seen = 0
        while True:
            for heard in self.events[seen:]:
                seen += 1
                if heard["event"] == event and details.items() <= heard.items():
                    return heard
            arrived = self._arriving.get(timeout=max(deadline - time.monotonic(), 0.01))
            assert arrived is not None, f"ended before {event}: {self.errors()}"
            self.events.append(arrived)

    def wait_until_web(self) -> str:
        """The address at which it serves pages; workers may still be starting."""
        return str(self.wait_for("address")["url"])

    def wait_until_serving(self) -> str:
        url = self.wait_until_web()
        for name in ("cpu worker", "gpu worker", "env host", "housekeeping"):
            self.wait_for("ready", name=name)
        return url

    def forget_events(self) -> None:
        """All but where it serves."""
        self.events = [event for event in self.events if event["event"] == "address"]

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(40)

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def close(self) -> None:
        if self.process.poll() is None:
            self.interrupt()
        self._reader.join(5)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._arriving.put(json.loads(line))
        self._arriving.put(None)


@contextmanager
def proctor_up(data: Path, *arguments: str, **options: Any) -> Iterator[ProctorProcess]:
    started = ProctorProcess(data, *arguments, **options)
    try:
        yield started
    finally:
        started.close()


def processes_using(data: Path) -> dict[int, str]:
    """Living processes that were given this data folder, by their command or their environment."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            environment = (folder / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(data) in command + environment and command:
            found[int(folder.name)] = command
    return found
