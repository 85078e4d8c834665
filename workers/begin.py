"""A module as a process of its own: `python -m workers.begin MODULE …` calls its `main` as `python -m MODULE …` would.

Nothing that is imported is garbage: while torch and what comes with it pile up, Python would look through all of it
time and again, which takes a fifth of the time that the imports take.
"""

import gc
import sys
from importlib import import_module


def main() -> int:
    del sys.argv[0]
    gc.disable()
    begin = import_module(sys.argv[0]).main
    gc.freeze()
    gc.enable()
    return int(begin() or 0)


if __name__ == "__main__":
    sys.exit(main())
