"""What this machine's model software reaches: `python -m workers.models.machine` says it in one line of JSON.

A worker asks it in a process of its own: torch takes seconds to import, and workers are forked from one without it.
"""

import json
import sys
from typing import Any

import torch

from workers.models.converter import find_converter


def look() -> dict[str, Any]:
    """`{cuda, cuda_devices, bf16, converter}`; the converter's name or null."""
    has_cuda = bool(torch.cuda.is_available())
    converter = find_converter()
    return {
        "cuda": has_cuda,
        "cuda_devices": torch.cuda.device_count() if has_cuda else 0,
        "bf16": has_cuda and bool(torch.cuda.is_bf16_supported()),
        "converter": converter.name if converter else None,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(look()) + "\n")
