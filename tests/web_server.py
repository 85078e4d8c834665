"""The web application of an installation; and one that is served: by a thread of this process, on a free port."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import uvicorn
from fastapi import FastAPI

from backend.app import create_app
from backend.core.events import Hub


def web_of_installation() -> FastAPI:
    """The web application of this process, whose requests commit where `transaction()` goes."""
    app = _web()
    app.state.hub = Hub()
    return app


@cache
def _web() -> FastAPI:
    """Built once: it has many routes."""
    return create_app()


@contextmanager
def web_served(app: FastAPI) -> Iterator[str]:
    """Gives its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()
