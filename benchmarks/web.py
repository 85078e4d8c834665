"""The web of a measurement's installation."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx

from backend.settings import PROJECT_ROOT


@contextmanager
def web() -> Iterator[str]:
    """The web in a process of its own, as in life; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "backend.app:create_app", "--factory", "--port", str(port)]
    process = subprocess.Popen([*command, "--log-level", "warning"], cwd=PROJECT_ROOT)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_up(url)
        yield url
    finally:
        process.kill()
        process.wait()


def _wait_until_up(url: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(httpx.TransportError):
            if httpx.get(f"{url}/healthz").status_code == 200:
                return
        time.sleep(0.05)
    raise RuntimeError("the web did not start")
