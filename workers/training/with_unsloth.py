"""A training run of the engine unsloth: `python -m workers.training.with_unsloth <run id>`.

Unsloth rewrites parts of transformers, PEFT and TRL when it is imported, so it comes before all of them. Only workers
of the flavour gpu-unsloth have it.
"""

import importlib
import sys


def main() -> int:
    importlib.import_module("unsloth")
    return int(importlib.import_module("workers.training.run").main())


if __name__ == "__main__":
    sys.exit(main())
