"""Run a module as a separate process: `python -m workers.begin MODULE …` calls its `main` like `python -m MODULE …`.

Garbage collection is off while it is imported: nothing is garbage yet, and scanning torch repeatedly takes a fifth of
the import time.
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
