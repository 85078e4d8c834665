"""One environment server, after the fork and inside the jail: import the package's app and serve it with uvicorn."""

import gc
import io
import json
import os
import random
import socket as sockets
import sys
import threading
import zipfile
from collections.abc import Awaitable, Callable, MutableMapping
from types import ModuleType
from typing import Any

from backend.domain.environments.packages import file_as_bytes
from workers.environments.inside.import_styles import import_app

_STACK_BYTES = 1 << 20
"""Stack of each thread; every session has one, and RLIMIT_AS counts them."""
_MOST_UNCOMPILED = 8_000
CAPACITY_PATH = "/_proctor/capacity"

Scope = MutableMapping[str, Any]
Channel = Callable[..., Awaitable[Any]]


def write_package(descriptor: int, folder: str) -> None:
    """Unzip the package into its place. The host has checked the paths."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    with open(descriptor, "rb", closefd=False) as file, zipfile.ZipFile(io.BytesIO(file.read())) as archive:
        archive.extractall(folder)
        for path in archive.namelist():
            restored, content = file_as_bytes(path, archive.read(path).decode())
            if restored != path:
                with open(os.path.join(folder, restored), "wb") as binary:
                    binary.write(content)


def serve(request: dict[str, Any], folder: str, listener: sockets.socket, own: str = "") -> None:
    """Import the app and serve it until the process is ended. `own`: where the package's own environment lies."""
    _clean_up(request["variables"])
    root = os.path.join(folder, request["name"])
    os.chdir(root)
    sys.path.insert(0, root)
    sys.path.append(folder)  # last: the package may be named like a module of the standard library
    app = _load(request["app"], request["name"], root)

    import uvicorn

    config = uvicorn.Config(
        _WithCapacity(app, request["sessions"], own),
        log_level="warning",
        access_log=False,
        ws_per_message_deflate=False,
        ws_ping_interval=None,  # a client that thinks, or rests in a pool, reads no pings
        ws_max_size=16 << 20,
        timeout_graceful_shutdown=1,
    )
    uvicorn.Server(config).run(sockets=[listener])


def _clean_up(variables: dict[str, str]) -> None:
    """Set up the state of a fresh process: environment variables, random state and modules."""
    os.environ.clear()  # noqa: TID251
    os.environ.update({"PATH": "/nonexistent", "HOME": "/tmp", "LANG": "C.UTF-8", **variables})  # noqa: TID251
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    for name in [name for name in sys.modules if name.partition(".")[0] in {"workers", "backend"}]:
        del sys.modules[name]
    sys.argv[:] = ["server"]
    threading.stack_size(_STACK_BYTES)


def _load(app: str, name: str, root: str) -> Any:
    """The app object, however the package expects to be imported."""
    module_name, _, attribute = app.partition(":")
    return _attribute(import_app(module_name, name, root), attribute or "app")


def _attribute(module: ModuleType, path: str) -> Any:
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{module.__name__}:{path} is not an app but {type(found).__name__}")
    return found


class _WithCapacity:
    """The app plus an address that reports its number of sessions, which OpenEnv lacks."""

    def __init__(self, app: Any, assumed: int, own: str) -> None:
        self._app = app
        told = {"sessions": _declared_sessions() or assumed, "uncompiled": _uncompiled(own)}
        self._body = json.dumps(told).encode()

    async def __call__(self, scope: Scope, receive: Channel, send: Channel) -> None:
        if scope["type"] == "http" and scope["path"] == CAPACITY_PATH:
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": self._body})
        else:
            await self._app(scope, receive, send)


def _declared_sessions() -> int | None:
    """The capacity of the OpenEnv server that the app's import has made; old versions do not say it."""
    try:
        from openenv.core.env_server import HTTPEnvServer
    except ImportError:
        return None

    # not isinstance: it would ask lazy proxies for their class, which imports what they stand for
    servers = [thing for thing in gc.get_objects() if issubclass(type(thing), HTTPEnvServer)]
    tells = bool(servers) and hasattr(servers[-1], "get_capacity_status")
    return int(servers[-1].get_capacity_status().max_sessions) if tells else None


def _uncompiled(own: str) -> list[str]:
    """Modules of the environment in the folder `own` that were imported without bytecode; relative to it."""
    if not own:
        return []
    own, found = own + "/", []
    for module in list(sys.modules.values()):
        try:  # past what a lazy module does when it is asked
            spec = object.__getattribute__(module, "__dict__").get("__spec__")
        except AttributeError:
            continue
        origin, cached = getattr(spec, "origin", None), getattr(spec, "cached", None)
        if (
            isinstance(origin, str)
            and isinstance(cached, str)
            and origin.startswith(own)
            and not os.path.exists(cached)
        ):
            found.append(origin.removeprefix(own))
    return found[:_MOST_UNCOMPILED]
