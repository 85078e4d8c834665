"""One environment server, after the fork and inside the jail: import the package's app and serve it with uvicorn.

A package may be made to run from its own folder, from its parent, or under a longer name; its code says which. Names
are read from the package's `pyproject.toml` and from its own imports: `from envs.maze.models import …` in a package
with a `models.py` means that it calls itself `envs.maze`.
"""

import gc
import importlib
import importlib.machinery
import importlib.util
import io
import json
import os
import random
import re
import socket as sockets
import sys
import threading
import tomllib
import zipfile
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

from backend.domain.environments.packages import file_as_bytes
from workers.environments.inside.recorder import BRANCHES_PATH, record_branches
from workers.environments.inside.shared_connection import PROTOCOL, shared_app

CAPACITY_PATH = "/_proctor/capacity"
_IMPORT = re.compile(r"^\s*(?:from|import)\s+([A-Za-z_][\w.]*)", re.MULTILINE)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


def write_package(descriptor: int, name: str, folder: str) -> None:
    """Unzip the package to `name` in a folder. The host has checked the paths."""
    folder = os.path.join(folder, name)
    os.lseek(descriptor, 0, os.SEEK_SET)
    with open(descriptor, "rb", closefd=False) as file, zipfile.ZipFile(io.BytesIO(file.read())) as archive:
        archive.extractall(folder)
        for path in archive.namelist():
            restored, content = file_as_bytes(path, archive.read(path).decode())
            if restored != path:
                with open(os.path.join(folder, restored), "wb") as binary:
                    binary.write(content)


def serve(request: dict[str, Any], folder: str, listener: sockets.socket, own: str = "") -> None:
    """Import the app and serve it until the process is ended. `own`: folder of the package's own environment."""
    # the state of a fresh process: environment variables, random state and modules
    os.environ.clear()  # noqa: TID251
    variables = {"PATH": "/nonexistent", "HOME": "/tmp", "LANG": "C.UTF-8", **request["variables"]}
    os.environ.update(variables)  # noqa: TID251
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    for name in [name for name in sys.modules if name.partition(".")[0] in {"workers", "backend"}]:
        del sys.modules[name]
    sys.argv[:] = ["server"]
    threading.stack_size(1 << 20)  # every session has a thread, and RLIMIT_AS counts their stacks

    root = os.path.join(folder, request["name"])
    os.chdir(root)
    sys.path.insert(0, root)
    sys.path.append(folder)  # last: the package may be named like a module of the standard library
    read_branches = record_branches(root) if request["branches"] else None
    module_name, _, attribute = request["app"].partition(":")
    app: Any = _import_app(module_name, request["name"], root)
    for part in (attribute or "app").split("."):
        app = getattr(app, part)
    if not callable(app):
        raise TypeError(f"{request['app']} is not an app but {type(app).__name__}")

    import uvicorn

    config = uvicorn.Config(
        _with_reports(app, root, request["sessions"], own, read_branches),
        log_level="warning",
        access_log=False,
        ws_per_message_deflate=False,
        ws_ping_interval=None,  # a client that computes, or waits in a pool, reads no pings
        ws_max_size=16 << 20,
        timeout_graceful_shutdown=1,
    )
    uvicorn.Server(config).run(sockets=[listener])


def _with_reports(
    app: AsgiApp, root: str, assumed_sessions: int, own: str, read_branches: Callable[[], dict[str, object]] | None
) -> AsgiApp:
    """The app plus addresses that OpenEnv lacks, and sessions that share a connection where its environment allows it.

    The first reports the number of sessions, and the modules of the environment in the folder `own` that were imported
    without bytecode, relative to it. The second reports the branches that ran since it was last read.
    """
    sessions = assumed_sessions
    try:
        from openenv.core.env_server import HTTPEnvServer
    except ImportError:
        pass
    else:
        # not isinstance: it would ask lazy proxies for their class, which imports the module behind them
        servers = [each for each in gc.get_objects() if issubclass(type(each), HTTPEnvServer)]
        if servers and hasattr(servers[-1], "get_capacity_status"):  # old versions do not report it
            sessions = int(servers[-1].get_capacity_status().max_sessions) or assumed_sessions
    uncompiled = []
    for module in list(sys.modules.values()) if own else []:
        try:  # without triggering a lazy module's import
            spec = object.__getattribute__(module, "__dict__").get("__spec__")
        except AttributeError:
            continue
        origin, cached = getattr(spec, "origin", None), getattr(spec, "cached", None)
        if not isinstance(origin, str) or not isinstance(cached, str):
            continue
        if origin.startswith(f"{own}/") and not os.path.exists(cached):
            uncompiled.append(origin.removeprefix(f"{own}/"))
    shared = shared_app(app, root)
    capacity: dict[str, object] = {"sessions": sessions, "uncompiled": uncompiled[:8_000]}
    capacity["protocol"] = PROTOCOL if shared else ""
    reports = {CAPACITY_PATH: lambda: capacity}
    if read_branches is not None:
        reports[BRANCHES_PATH] = read_branches

    async def serve_request(scope: Scope, receive: Receive, send: Send) -> None:
        report = reports.get(scope["path"]) if scope["type"] == "http" else None
        if report is not None:
            await send(
                {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
            )
            await send({"type": "http.response.body", "body": json.dumps(report()).encode()})
        elif shared and scope["type"] == "websocket" and scope["path"] == "/ws" and PROTOCOL in scope["subprotocols"]:
            await shared(receive, send)
        else:
            await app(scope, receive, send)

    return serve_request


# the names of a package


def _import_app(module_name: str, name: str, root: str) -> ModuleType:
    """Import the app's module, however the package expects to be imported. `name`: of the package's folder `root`."""
    own_names = _own_names(root, module_name)
    sys.meta_path.append(_OwnNameFinder(root, own_names))  # last: installed packages go first
    try:
        return importlib.import_module(module_name)
    except ImportError as error:
        first = error
    for own_name in [*own_names, name]:
        for key, module in list(sys.modules.items()):  # drop what the last attempt has loaded of the package
            file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "")
            if file and os.path.abspath(str(file)).startswith(root):
                del sys.modules[key]
        try:
            return importlib.import_module(f"{own_name}.{module_name}")
        except ImportError as error:
            if "relative import" in str(first):
                first = error
    raise first


def _own_names(root: str, app_module: str) -> list[str]:
    """The dotted names that the package calls itself by, most likely first."""
    names: dict[str, None] = {}
    try:  # setuptools' `package-dir = {"maze_env" = "."}`
        with open(os.path.join(root, "pyproject.toml"), "rb") as file:
            folders = tomllib.load(file)["tool"]["setuptools"]["package-dir"]
        names |= {str(name): None for name, folder in folders.items() if name and folder == "."}
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError):
        pass  # none are declared
    imported = [app_module]
    for folder, _, files in os.walk(root):
        for name in sorted(files):
            if name.endswith(".py"):
                with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as source:
                    imported += _IMPORT.findall(source.read(200_000))

    def is_module(*parts: str) -> bool:
        path = os.path.join(root, *parts)
        return os.path.isfile(path + ".py") or os.path.isdir(path)

    for dotted in imported:
        parts = dotted.split(".")
        if parts[0] in {"openenv", "openenv_core", *sys.stdlib_module_names} or is_module(parts[0]):
            continue
        for count in range(1, len(parts)):
            if is_module(*parts[count:]):
                names[".".join(parts[:count])] = None
                break
    return list(names)


@dataclass(slots=True)
class _OwnNameFinder(MetaPathFinder):
    _root: str
    _names: Sequence[str]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        is_package = fullname in self._names
        if not is_package and not any(name.startswith(fullname + ".") for name in self._names):
            return None
        start = os.path.join(self._root, "__init__.py")
        if is_package and os.path.isfile(start):
            return importlib.util.spec_from_file_location(fullname, start, submodule_search_locations=[self._root])
        spec = importlib.machinery.ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = [self._root] if is_package else []
        return spec
