"""Run a module as a separate process: `python -m workers.begin MODULE …` calls its `main` like `python -m MODULE …`.

Its imports take a fifth less time, because no garbage is collected meanwhile, and structlog does not import rich, with
which it would color logs in a terminal. Its threads of OpenMP sleep while they wait for each other: by default they
spin, which slowed sampling by a factor of ten where other processes, such as env servers, also wanted the cores.
"""

import os
import sys
from importlib import import_module

from backend.core.imports import absent, without_collection


def main() -> int:
    del sys.argv[0]
    prepare()
    return run()


def prepare() -> None:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # noqa: TID251 - read when torch is imported
    with without_collection(), absent("rich"):
        import_module("structlog")


def run() -> int:
    """Run the module that is the first argument, and return its exit status."""
    with without_collection():
        begin = import_module(sys.argv[0]).main
    return int(begin() or 0)


if __name__ == "__main__":
    sys.exit(main())
