"""`openenv` imports gradio for a web page that no env server of Proctor shows: 2.5 of 3.1 seconds, 80 MB.

While `openenv` is imported, a stand-in replaces gradio. A package that imports gradio itself gets the real one.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


def _attribute(owner: object, name: str) -> object:
    """Any attribute of the stand-in, of its classes and of their objects; only Python's own names are absent."""
    if name.startswith("__"):
        raise AttributeError(name)
    return _Anything


class _AnythingType(type):
    __getattr__ = _attribute

    def __instancecheck__(cls, instance: object) -> bool:
        return True  # a page that the package built with the real gradio is as good as ours


class _Anything(metaclass=_AnythingType):
    """Every attribute is this class, which is enough for themes, class definitions and `isinstance`."""

    __getattr__ = _attribute

    def __init__(self, *arguments: object, **named: object) -> None:
        pass

    def __call__(self, *arguments: object, **named: object) -> "_Anything":
        return self

    __enter__, __exit__ = __call__, __init__


class _StandInModule(ModuleType):
    __getattr__ = _attribute

    @staticmethod
    def mount_gradio_app(app: object, *arguments: object, **named: object) -> object:
        return app  # the server continues without the page


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
