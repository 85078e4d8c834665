"""Import quickly: without collecting garbage, and without what a library imports only in case it is there."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """Collect no garbage within this context, and never what exists at its end.

    While modules are imported, nothing is garbage, and scanning everything repeatedly takes a fifth of the time.
    Modules stay, so later collections need not scan them either.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def absent(name: str) -> Iterator[None]:
    """Let imports of this module fail within this context. No effect if it was imported before."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]
