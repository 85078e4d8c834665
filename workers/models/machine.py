"""GPUs and programs that models can use on this machine: `python -m workers.models.machine` prints a line of JSON.

A worker runs this in a separate process: torch takes seconds to import, and a worker forks from a process without it.
A torch that was built only for the CPU is not imported at all.
"""

import asyncio
import json
import runpy
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from backend.settings import get_settings
from workers.commands import Bounds, CommandStopped, run_command

CONVERTERS = ("convert_hf_to_gguf.py", "convert-hf-to-gguf")
"""llama.cpp's converter to GGUF, in a checkout and as some distributions install it."""
OWN_CONVERTER = Path(__file__).with_name("gguf_converter.py")
CONVERT_SECONDS = 3600.0
_MAX_MESSAGE = 500


class NotConverted(RuntimeError):
    """The converter refused the model; the message is its last line of output."""


def reach() -> dict[str, object]:
    """GPUs that torch supports here: `{cuda, cuda_devices, bf16}`."""
    if not may_reach_gpus():
        return {"cuda": False, "cuda_devices": 0, "bf16": False}
    import torch

    has_cuda = bool(torch.cuda.is_available())
    return {
        "cuda": has_cuda,
        "cuda_devices": torch.cuda.device_count() if has_cuda else 0,
        "bf16": has_cuda and bool(torch.cuda.is_bf16_supported()),
    }


def may_reach_gpus() -> bool:
    """Whether torch was built for GPUs, read from its version file without importing it. True if that is unknown."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return True
    file = Path(spec.origin).with_name("version.py")
    built_for = runpy.run_path(str(file)) if file.is_file() else {}
    return any(built_for.get(name, "unknown") is not None for name in ("cuda", "hip"))  # torch calls AMD's GPUs cuda


def find_converter() -> Path | None:
    """The converter from the settings; else llama.cpp's next to this interpreter or on the path; else Proctor's own,
    for fewer models, if the package gguf is installed."""
    if configured := get_settings().gguf_converter:
        return configured if configured.is_file() else None
    for name in CONVERTERS:
        adjacent = Path(sys.executable).with_name(name)
        if adjacent.is_file():
            return adjacent
        if found := shutil.which(name):
            return Path(found)
    return OWN_CONVERTER if find_spec("gguf") else None


def convert(program: Path, folder: Path, target: Path, precision: str) -> None:
    """Write the folder's model as one GGUF file. Raises NotConverted."""
    # the own one must not find its neighbors, such as `vllm.py`, in place of packages
    options = ["-P"] if program == OWN_CONVERTER else []
    interpreter = [sys.executable, *options] if program.suffix == ".py" else []
    command = [*interpreter, str(program), str(folder), "--outfile", str(target), "--outtype", precision]
    if not program.is_file():
        raise NotConverted(f"{program.name} did not run: there is no such file")
    try:
        done = asyncio.run(run_command(command, Bounds(CONVERT_SECONDS)))
    except CommandStopped as error:
        raise NotConverted(f"{program.name} was stopped: {error}") from error
    if done.status or not target.is_file():
        lines = [line for line in (done.errors or done.output).splitlines() if line.strip()]
        message = lines[-1].strip()[-_MAX_MESSAGE:] if lines else "it printed nothing"
        raise NotConverted(f"{program.name} ended with {done.status}: {message}")


if __name__ == "__main__":
    converter = find_converter()
    sys.stdout.write(json.dumps({**reach(), "converter": converter.name if converter else None}) + "\n")
