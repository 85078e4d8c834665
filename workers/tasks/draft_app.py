"""Served with a draft that is tried, never imported here: the package's own app, with errors that carry a traceback.

OpenEnv sends only an exception's text to the client, and no text at all for a class that cannot be instantiated.
"""

import contextlib
import functools
import gc
import importlib
import inspect
import os
import traceback
from collections.abc import Callable, Iterator

from openenv.core.env_server import Environment, HTTPEnvServer
from openenv.core.env_server.types import State

APP = "__APP__"
MAX_FRAMES = 8


class DraftError(RuntimeError):
    """An author's own mistake, with its traceback as the text."""


def _describe(error: BaseException) -> str:
    """Return the error and its last frames, with paths relative to the package."""
    here = os.path.dirname(os.path.abspath(__file__))
    lines = [f"{type(error).__name__}: {error}"]
    frames = traceback.extract_tb(error.__traceback__)
    for frame in [frame for frame in frames if frame.filename != __file__][-MAX_FRAMES:]:
        is_inside = frame.filename.startswith(here)
        path = os.path.relpath(frame.filename, here) if is_inside else "/".join(frame.filename.split("/")[-2:])
        lines.append(f"{path}:{frame.lineno} in {frame.name}\n    {frame.line}")
    return "\n".join(lines)


@contextlib.contextmanager
def _described_errors() -> Iterator[None]:
    try:
        yield
    except DraftError:
        raise
    except Exception as error:
        raise DraftError(_describe(error)) from error


def _guard(method: Callable[..., object]) -> Callable[..., object]:
    if not inspect.iscoroutinefunction(method):
        return _described_errors()(method)

    @functools.wraps(method)
    async def call(*args: object, **kwargs: object) -> object:
        with _described_errors():
            return await method(*args, **kwargs)

    return call


def _guard_factory(factory: Callable[[], Environment]) -> Callable[[], Environment]:
    @functools.wraps(factory)
    def create() -> Environment:
        try:
            environment = factory()
        except Exception as error:
            text = _describe(error)

            def fail(*_: object, **__: object) -> None:
                raise DraftError(text)

            # replaces an environment whose class failed
            broken = type("BrokenEnvironment", (Environment,), {"reset": fail, "step": fail, "state": State()})
            return broken()
        for name in ("reset", "step", "reset_async", "step_async"):
            if callable(method := getattr(environment, name, None)):
                setattr(environment, name, _guard(method))
        return environment

    return create


# inside the package's folder; if a relative import fails, the host loads this file from the parent folder
_module, _, _attribute = APP.partition(":")
app = getattr(importlib.import_module(f"{__package__}.{_module}" if __package__ else _module), _attribute or "app")
for _object in gc.get_objects():
    if issubclass(type(_object), HTTPEnvServer):
        _object._env_factory = _guard_factory(_object._env_factory)
