"""Served with a draft that is tried, never imported here: the package's own app, whose failures tell their traceback.

OpenEnv sends only an exception's text to the client, and of a class that cannot be created not even that.
"""

import functools
import gc
import importlib
import inspect
import os
import traceback
from collections.abc import Callable
from typing import Any

from openenv.core.env_server import Environment, HTTPEnvServer
from openenv.core.env_server.types import State

APP = "__APP__"
MOST_FRAMES = 8


def _load() -> Any:
    """From inside the package's folder; when that fails for a relative import, the host loads this from its parent."""
    module, _, attribute = APP.partition(":")
    package = __package__ or ""
    return getattr(importlib.import_module(f"{package}.{module}" if package else module), attribute or "app")


class Failed(RuntimeError):
    """An author's own mistake, told in full."""


class _NeverCreated(Environment):  # type: ignore[misc]
    """In the place of an environment whose class failed."""

    def __init__(self, story: str) -> None:
        super().__init__()
        self._story = story

    def reset(self, seed: int | None = None, episode_id: str | None = None, **arguments: Any) -> Any:
        raise Failed(self._story)

    def step(self, action: Any, timeout_s: float | None = None, **arguments: Any) -> Any:
        raise Failed(self._story)

    @property
    def state(self) -> State:
        return State()


def _story(error: BaseException) -> str:
    """The last frames, in the package's own paths."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename != __file__][-MOST_FRAMES:]
    lines = [f"{_short(frame.filename)}:{frame.lineno} in {frame.name}\n    {frame.line}" for frame in own]
    return "\n".join([f"{type(error).__name__}: {error}", *lines])


def _short(path: str) -> str:
    here = os.path.dirname(os.path.abspath(__file__))
    return os.path.relpath(path, here) if path.startswith(here) else "/".join(path.split("/")[-2:])


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            try:
                return await method(*args, **kwargs)
            except Failed:
                raise
            except Exception as error:
                raise Failed(_story(error)) from error

        return call_async

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except Failed:
            raise
        except Exception as error:
            raise Failed(_story(error)) from error

    return call


def _creating(factory: Callable[[], Any]) -> Callable[[], Any]:
    @functools.wraps(factory)
    def create() -> Any:
        try:
            environment = factory()
        except Exception as error:
            return _NeverCreated(_story(error))
        for name in ("reset", "step", "reset_async", "step_async"):
            if callable(method := getattr(environment, name, None)):
                setattr(environment, name, _guarded(method))
        return environment

    return create


app = _load()
for _thing in gc.get_objects():
    if issubclass(type(_thing), HTTPEnvServer):
        _thing._env_factory = _creating(_thing._env_factory)
