"""Train with the engine unsloth: `python -m workers.training.with_unsloth <run id>`.

Unsloth patches transformers, PEFT and TRL when it is imported, so it must be imported before them. Only `gpu-unsloth`
workers have it.
"""

import importlib
import sys


def main() -> int:
    importlib.import_module("unsloth")
    return int(importlib.import_module("workers.training.run").main())


if __name__ == "__main__":
    sys.exit(main())
