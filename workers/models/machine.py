"""What this machine's model software reaches: `python -m workers.models.machine` says it in one line of JSON.

A worker asks it in a process of its own: torch takes seconds to import, and workers are forked from one without it.
A torch that was built for the CPU alone is not even asked.
"""

import json
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from workers.models.converter import find_converter

_REACHING = ("cuda", "hip")
"""Torch's words for what it was built for; it reaches AMD's GPUs under the name of the others."""


def look() -> dict[str, Any]:
    """`{cuda, cuda_devices, bf16, converter}`; the converter's name or null."""
    converter = find_converter()
    return {**reach(), "converter": converter.name if converter else None}


def reach() -> dict[str, Any]:
    """`{cuda, cuda_devices, bf16}`."""
    if not _may_reach_gpus():
        return {"cuda": False, "cuda_devices": 0, "bf16": False}
    import torch

    has_cuda = bool(torch.cuda.is_available())
    return {
        "cuda": has_cuda,
        "cuda_devices": torch.cuda.device_count() if has_cuda else 0,
        "bf16": has_cuda and bool(torch.cuda.is_bf16_supported()),
    }


def _may_reach_gpus() -> bool:
    """Was torch built for any? Read from its version's file, which imports nothing; unread: maybe."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return True
    file = Path(spec.origin).with_name("version.py")
    built_for = runpy.run_path(str(file)) if file.is_file() else {}
    return any(built_for.get(name, "unread") is not None for name in _REACHING)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(look()) + "\n")
