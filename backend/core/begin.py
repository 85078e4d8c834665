"""Run a module as a separate process: `python -m backend.core.begin MODULE …` calls its `main` as `-m MODULE …` does.

Garbage collection is off while it is imported: nothing is garbage yet, and scanning everything repeatedly takes a fifth
of the import time. The imported objects are exempt from later collections, because modules stay.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module


@contextmanager
def without_collection() -> Iterator[None]:
    """Collect no garbage within this context, and never what exists at its end."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def main() -> int:
    del sys.argv[0]
    with without_collection():
        begin = import_module(sys.argv[0]).main
    return int(begin() or 0)


if __name__ == "__main__":
    sys.exit(main())
