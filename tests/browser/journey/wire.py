"""A wire between browser and server that can be cut: established connections end at once, new ones are closed."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_CHUNK = 65536


class Wire:
    """Forwards what arrives at `port` to the target port, both on this machine."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._is_cut = False
        self._ends: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        with self._lock:
            self._is_cut = True
            ends, self._ends = self._ends, set()
        for end in ends:
            _hang_up(end)

    def mend(self) -> None:
        with self._lock:
            self._is_cut = False

    def close(self) -> None:
        self.cut()
        _hang_up(self._listener)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self._connect(near)

    def _connect(self, near: socket.socket) -> None:
        with self._lock:
            if self._is_cut:
                return near.close()
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return near.close()
            self._ends |= {near, far}
        for source, drain in ((near, far), (far, near)):
            threading.Thread(target=self._carry, args=(source, drain), daemon=True).start()

    def _carry(self, source: socket.socket, drain: socket.socket) -> None:
        try:
            while data := source.recv(_CHUNK):
                drain.sendall(data)
        except OSError:
            pass  # hung up on either side
        with self._lock:
            self._ends -= {source, drain}
        for end in (source, drain):
            _hang_up(end)


def _hang_up(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # was hung up already
    end.close()


@contextmanager
def wire_to(target: int) -> Iterator[Wire]:
    wire = Wire(target)
    yield wire
    wire.close()
