"""`openenv` imports gradio for a web page that no env server of Proctor shows: 2.5 of 3.1 seconds, 80 MB.

While `openenv` is imported, a stand-in replaces gradio. A package that imports gradio itself gets the real one.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


class _AnythingType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return True  # a page that the package built with the real gradio is as good as ours

    def __getattr__(cls, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything


class _Anything(metaclass=_AnythingType):
    """Every attribute is itself, which is enough for themes, class definitions and `isinstance`."""

    def __init__(self, *arguments: object, **named: object) -> None:
        pass

    def __call__(self, *arguments: object, **named: object) -> "_Anything":
        return self

    def __getattr__(self, name: str) -> "_Anything":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __enter__(self) -> "_Anything":
        return self

    def __exit__(self, *error: object) -> None:
        pass


class _StandInModule(ModuleType):
    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "mount_gradio_app":  # the server continues without the page
            return lambda app, *arguments, **named: app
        return _Anything


@contextmanager
def without(name: str) -> Iterator[None]:
    """Within this context, imports of the module get a stand-in. No effect if it was imported before."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = _StandInModule(name)
    try:
        yield
    finally:
        del sys.modules[name]
