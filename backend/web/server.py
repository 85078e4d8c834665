"""The web server: uvicorn with limits on how long it waits for a request's headers and body.

python -m backend.web.server --host 127.0.0.1 --port 8000
"""

import argparse
import asyncio
from importlib import import_module

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from backend.core.imports import without_collection
from backend.settings import PROJECT_ROOT, get_settings

HEADER_SECONDS = 10.0
"""From the start of a connection, or the first byte of its next request, to the end of the headers."""
MAX_HEADER_BYTES = 64 * 1024
"""Maximum size of a request's address and headers."""
BODY_SECONDS = 30.0
"""Interval at which the progress of a body is checked."""
BODY_BYTES = 8 * 1024
"""Minimum number of bytes of an incomplete body per interval."""
_REFUSALS = {408: b"408 Request Timeout", 431: b"431 Request Header Fields Too Large"}


class BoundedHttp(HttpToolsProtocol):
    """Disconnects clients that do not finish their request in time."""

    _timer: asyncio.TimerHandle | None = None
    _is_in_head = False
    _is_refused = False
    _head_bytes = 0
    _body_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if not self._is_in_head and (self.cycle is None or self.cycle.response_complete) and self._timer is None:
            self._expect_head()  # even if these bytes do not start a request yet
        self._head_bytes += len(data) if self._is_in_head else 0
        super().data_received(data)
        if self._is_in_head and self._head_bytes > MAX_HEADER_BYTES:
            self._refuse(431)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._is_in_head:
            self._expect_head()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEADER_BYTES:
            self._refuse(431)
            return
        super().on_headers_complete()
        self._body_bytes = 0
        self._start_timer()

    def on_body(self, body: bytes) -> None:
        if not self._is_refused:
            self._body_bytes += len(body)
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_refused:
            self._stop_timer()
            super().on_message_complete()

    def _expect_head(self) -> None:
        self._is_in_head, self._head_bytes = True, 0
        self._start_timer()

    def _check(self) -> None:
        is_slow = self._is_in_head or self._body_bytes < BODY_BYTES
        if is_slow and not self.flow.read_paused:  # paused: an earlier request is being answered
            self._refuse(408)
            return
        self._body_bytes = 0
        self._start_timer()

    def _refuse(self, status: int) -> None:
        self._is_refused = True
        self._stop_timer()
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            head = b"HTTP/1.1 " + _REFUSALS[status] + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            self.transport.write(head)
        self.transport.close()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(HEADER_SECONDS if self._is_in_head else BODY_SECONDS, self._check)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    with without_collection():
        app = import_module("backend.app").create_app()  # above this layer
    uvicorn.run(
        app,
        host=arguments.host,
        port=arguments.port,
        http=BoundedHttp,
        ws="none",
        server_header=False,
        forwarded_allow_ips=get_settings().trusted_proxies,
        access_log=False,
        timeout_graceful_shutdown=3,
        log_config=str(PROJECT_ROOT / "backend" / "logging.json"),
    )


if __name__ == "__main__":
    main()
