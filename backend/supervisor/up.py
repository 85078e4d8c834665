"""The order of things: servers, preparation, web, workers; then watch; at the end stop all, the servers last."""

import json
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from backend.core.embedded import IS_SUPPORTED, EmbeddedServerFailed
from backend.settings import Settings
from backend.supervisor.children import STOP_SECONDS, Child
from backend.supervisor.data_folder import CannotStart, DataFolder, open_data_folder, unusable, write_secret
from backend.supervisor.fleet import Address, Fleet

_TICK_SECONDS = 0.03
_SETTLED_TICK_SECONDS = 0.25

Tell = Callable[[str, dict[str, Any]], None]
"""Takes an event's name and its details: `ready` {name, seconds}, `address` {url, seconds}, `sign_in` {url}, `news`
{message}, `stopping`, `stopped`."""


class Supervisor:
    """Runs in the main thread until it is told to end. See `up`."""

    def __init__(self, fleet: Fleet, folder: DataFolder, tell: Tell, began_at: float) -> None:
        self.fleet, self.folder, self.tell, self.began_at = fleet, folder, tell, began_at
        self.children: list[Child] = []
        self.servers = fleet.servers()
        for server in (fleet.valkey, fleet.postgres):
            if server:
                server.report = lambda message: tell("news", {"message": message})
        self.is_migrated = False
        self.api = fleet.api(lambda: self.is_migrated)
        self.waves = fleet.waves()
        self.wave = [self.api]
        self.said: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.preparation: Any = None
        self.link: str | None = None
        self.on_all_ready: Callable[[], None] | None = None

    def run(self) -> None:
        """Returns only by an exception: KeyboardInterrupt when told to end, CannotStart, ChildGaveUp."""
        self.preparation = self.fleet.start_preparation()
        threading.Thread(target=self._listen, name="preparation", daemon=True).start()
        for child in (self.api, self.fleet.env_host(), *self.servers):  # the slowest first; they wait for the database
            self._launch(child)
        while True:
            self._heed_preparation()
            self._watch()
            time.sleep(_SETTLED_TICK_SECONDS if self._all_ready() else _TICK_SECONDS)

    def stop(self) -> None:
        """Web and workers first, then the servers that they need."""
        if self.preparation and self.preparation.poll() is None:
            self.preparation.kill()
        others = [child for child in self.children if child not in self.servers]
        for group in (others, self.servers):
            for child in group:
                child.ask_to_stop()
            deadline = time.monotonic() + STOP_SECONDS
            for child in group:
                child.wait_until_ended(deadline - time.monotonic())

    def _launch(self, child: Child) -> None:
        self.children.append(child)
        child.launch()

    def _watch(self) -> None:
        for child in tuple(self.children):
            if news := child.watch():
                if child.is_ready:
                    self.tell("ready", {"name": child.name, "seconds": self._seconds()})
                else:
                    self.tell("news", {"message": news})
                if child is self.api and child.is_ready:
                    self.tell("address", {"url": self.fleet.address.url, "seconds": self._seconds()})
                    self._offer_link()
        if self.waves and all(child.is_ready for child in self.wave):
            self.wave = self.waves.pop(0)
            for child in self.wave:
                self._launch(child)
        if self.on_all_ready and self._all_ready():
            call, self.on_all_ready = self.on_all_ready, None
            call()

    def _offer_link(self) -> None:
        """While nobody has signed in: the one-time link, once somebody answers there."""
        if self.link and self.api.is_ready:
            self.tell("sign_in", {"url": self.link})
            self.link = None

    def _all_ready(self) -> bool:
        return self.preparation is None and not self.waves and all(child.is_ready for child in self.children)

    def _listen(self) -> None:
        """Forward what the preparation says to the main thread."""
        with self.preparation.stdout as lines:
            for line in lines:
                self.said.put(json.loads(line))
        self.said.put({"event": "ended", "status": self.preparation.wait()})

    def _heed_preparation(self) -> None:
        while self.preparation is not None and not self.said.empty():
            match self.said.get():
                case {"event": "migrated"}:
                    self.is_migrated = True
                    self.tell("ready", {"name": "schema", "seconds": self._seconds()})
                case {"event": "ready", "link": link, "token": token}:
                    self._keep_token(token)
                    self.link = link
                    self._offer_link()
                case {"event": "failed", "message": message}:
                    raise CannotStart(message)
                case {"event": "ended", "status": status}:
                    if status:
                        log = self.folder.logs / "preparation.log"
                        raise CannotStart(f"the preparation of the database failed:\n{log.read_text()[-3000:]}")
                    self.preparation = None

    def _keep_token(self, token: str | None) -> None:
        if token:
            write_secret(self.folder.path / "cli-token", token)

    def _seconds(self) -> float:
        return round(time.monotonic() - self.began_at, 2)


def up(
    settings: Settings,
    data: Path,
    address: Address,
    tell: Tell,
    *,
    began_at: float,
    on_all_ready: Callable[[Supervisor], None] | None = None,
) -> None:
    """Serve until Ctrl-C or SIGTERM, then stop everything. Raises CannotStart or ChildGaveUp."""
    if not IS_SUPPORTED:
        raise CannotStart("`proctor up` needs Linux; elsewhere use docker compose")
    folder = open_data_folder(data)
    address = _free(address)
    with _failures_in_words(folder):
        folder.note_holder(address.url)
        supervisor = Supervisor(Fleet(folder, settings, address), folder, tell, began_at)
    if on_all_ready:
        supervisor.on_all_ready = lambda: on_all_ready(supervisor)
    with _ended_by_signals(), _failures_in_words(folder):
        try:
            supervisor.run()
        except KeyboardInterrupt:
            tell("stopping", {})
            supervisor.stop()
            tell("stopped", {})
        finally:
            supervisor.stop()


@contextmanager
def _failures_in_words(folder: DataFolder) -> Iterator[None]:
    """Raises CannotStart for what a server or the disk refuses."""
    try:
        yield
    except EmbeddedServerFailed as error:
        raise CannotStart(str(error)) from error
    except OSError as error:
        if not error.filename or not Path(str(error.filename)).is_relative_to(folder.path):
            raise
        raise unusable(folder.path, error) from error


def _free(address: Address) -> Address:
    """The same address, with port 0 made a real one. Raises CannotStart when something listens there."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
            probe.listen()
        except OSError as error:
            raise CannotStart(
                f"cannot listen on {address.host} port {address.port}: {error.strerror}; choose another --port"
            ) from error
        return Address(address.host, int(probe.getsockname()[1]))


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP (the terminal was closed) end it as Ctrl-C does; while it stops, they change nothing more."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, _end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> None:
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt
