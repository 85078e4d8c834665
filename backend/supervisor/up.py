"""Start servers, preparation, web and workers in order, watch them, and stop them, servers last."""

import json
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TextIO

from backend.core.embedded import IS_SUPPORTED, CannotStart
from backend.settings import Settings
from backend.supervisor.children import STOP_SECONDS, Child, Process, ended_by_signals
from backend.supervisor.data_folder import DataFolder, open_data_folder, unusable, write_secret
from backend.supervisor.fleet import Address, Fleet

_TICK_SECONDS = 0.03
_SETTLED_TICK_SECONDS = 0.25

Report = Callable[[str, dict[str, object]], None]
"""Takes the name of an event and its details: `ready` {name, seconds}, `address` {url, seconds}, `sign_in` {url},
`news` {message}, `stopping`, `stopped`."""


class Supervisor:
    """Runs in the main thread until it is interrupted. See `up`."""

    def __init__(
        self,
        fleet: Fleet,
        folder: DataFolder,
        report: Report,
        began_at: float,
        on_all_ready: "Callable[[Supervisor], None] | None",
    ) -> None:
        self.fleet, self.folder, self.report, self.began_at = fleet, folder, report, began_at
        self.servers: list[Child] = []
        """Embedded ones; none if external ones are used."""
        for name, server in (("broker", fleet.valkey), ("database", fleet.postgres)):
            if server:
                server.report = lambda message: report("news", {"message": message})
                start = partial(server.launch, folder.lock)
                self.servers.append(Child(name, start, server.log, server.is_ready, server.stop_signal))
        self.is_migrated = False
        self.api = fleet.api(lambda: self.is_migrated)
        self.waves = fleet.waves()
        self.wave = [self.api]
        self.children = [*self.servers]
        is_new = fleet.postgres is not None and not fleet.postgres.has_cluster()
        # creating a database keeps a core busy that the first page needs
        (self.waves[0] if is_new else self.children).append(fleet.env_host())
        self.is_ready = False
        """All are."""
        self.messages: queue.SimpleQueue[dict[str, object]] = queue.SimpleQueue()
        """From the preparation."""
        self.preparation: Process | None = None
        self.link: str | None = None
        self.on_all_ready = on_all_ready

    def run(self) -> None:
        """End only with an exception: KeyboardInterrupt when interrupted, CannotStart or ChildGaveUp."""
        self.fleet.fork_server.start()
        for child in self.children:
            child.launch()
        self.preparation, messages = self.fleet.start_preparation()  # waits until the fork server has imported
        threading.Thread(target=self._listen, args=(messages,), name="preparation", daemon=True).start()
        self.children.insert(0, self.api)
        while True:
            self._handle_messages()
            self._watch()
            time.sleep(_SETTLED_TICK_SECONDS if self.is_ready else _TICK_SECONDS)

    def stop(self) -> None:
        """Stop web and workers, then the servers that they need."""
        if self.preparation and self.preparation.poll() is None:
            self.preparation.send_signal(signal.SIGKILL)
        others = [child for child in self.children if child not in self.servers]
        for group in (others, self.servers):
            for child in group:
                child.ask_to_stop()
            deadline = time.monotonic() + STOP_SECONDS
            for child in group:
                child.wait_until_ended(deadline - time.monotonic())
        self.fleet.fork_server.stop()

    def _watch(self) -> None:
        for child in self.children:
            if news := child.watch():
                seconds = round(time.monotonic() - self.began_at, 2)
                if child.is_ready:
                    self.report("ready", {"name": child.name, "seconds": seconds})
                else:
                    self.report("news", {"message": news})
                if child is self.api and child.is_ready:
                    self.report("address", {"url": self.fleet.address.url, "seconds": seconds})
        if self.link and self.api.is_ready:  # the one-time link of a new installation
            self.report("sign_in", {"url": self.link})
            self.link = None
        if self.waves and all(child.is_ready for child in self.wave):
            self.wave = self.waves.pop(0)
            self.children += self.wave
        is_complete = self.preparation is None and not self.waves
        self.is_ready = is_complete and all(child.is_ready for child in self.children)
        if self.on_all_ready and self.is_ready:
            call, self.on_all_ready = self.on_all_ready, None
            call(self)

    def _listen(self, messages: TextIO) -> None:
        """Forward the messages of the preparation to the main thread."""
        assert self.preparation is not None
        with messages:
            for line in messages:
                self.messages.put(json.loads(line))
        self.messages.put({"event": "ended", "status": self.preparation.wait()})

    def _handle_messages(self) -> None:
        while self.preparation is not None and not self.messages.empty():
            match self.messages.get():
                case {"event": "migrated"}:
                    self.is_migrated = True
                    self.report("ready", {"name": "schema", "seconds": round(time.monotonic() - self.began_at, 2)})
                case {"event": "ready", "link": str() | None as link, "token": str() | None as token}:
                    if token:
                        write_secret(self.folder.path / "cli-token", token)
                    self.link = link
                case {"event": "failed", "message": message}:
                    raise CannotStart(message)
                case {"event": "ended", "status": status}:
                    if status:
                        log = self.folder.logs / "preparation.log"
                        raise CannotStart(f"the preparation of the database failed:\n{log.read_text()[-3000:]}")
                    self.preparation = None


def up(
    settings: Settings,
    data: Path,
    address: Address,
    report: Report,
    *,
    began_at: float,
    on_all_ready: Callable[[Supervisor], None] | None = None,
) -> None:
    """Serve until Ctrl-C or SIGTERM, then stop everything. Raises CannotStart or ChildGaveUp."""
    if not IS_SUPPORTED:
        raise CannotStart("`proctor up` needs Linux; elsewhere use docker compose")
    folder = open_data_folder(data)
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family) as probe:  # takes a free port for port 0
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
            probe.listen()
        except OSError as error:
            raise CannotStart(
                f"cannot listen on {address.host} port {address.port}: {error.strerror}; choose another --port"
            ) from error
        address = Address(address.host, int(probe.getsockname()[1]))
    try:
        folder.note_holder(address.url)
        supervisor = Supervisor(Fleet(folder, settings, address), folder, report, began_at, on_all_ready)
        with ended_by_signals():
            try:
                supervisor.run()
            except KeyboardInterrupt:
                report("stopping", {})
                supervisor.stop()
                report("stopped", {})
            finally:
                supervisor.stop()
    except OSError as error:
        if not error.filename or not Path(str(error.filename)).is_relative_to(folder.path):
            raise
        raise unusable(folder.path, error) from error
