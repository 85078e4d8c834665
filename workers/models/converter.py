"""llama.cpp's converter to GGUF: a program beside us that is never imported. Found here, also without torch."""

import asyncio
import shutil
import sys
from pathlib import Path

from backend.settings import get_settings
from workers.commands import Bounds, CommandStopped, run_command

PROGRAMS = ("convert_hf_to_gguf.py", "convert-hf-to-gguf")
"""In a checkout of llama.cpp, and as some distributions install it."""
SECONDS = 3600.0
_TOLD_CHARACTERS = 500


class NotConverted(RuntimeError):
    """The converter refused the model, in its own last words."""


def find_converter() -> Path | None:
    """The one of the settings; else beside this interpreter or on the path."""
    if named := get_settings().gguf_converter:
        return named if named.is_file() else None
    for name in PROGRAMS:
        beside = Path(sys.executable).with_name(name)
        if beside.is_file():
            return beside
        if found := shutil.which(name):
            return Path(found)
    return None


def convert(program: Path, folder: Path, target: Path, precision: str) -> None:
    """The folder's model as one GGUF file. Raises NotConverted."""
    interpreter = [sys.executable] if program.suffix == ".py" else []
    command = [*interpreter, str(program), str(folder), "--outfile", str(target), "--outtype", precision]
    if not program.is_file():
        raise NotConverted(f"{program.name} did not run: there is no such file")
    try:
        done = asyncio.run(run_command(command, Bounds(SECONDS)))
    except CommandStopped as error:
        raise NotConverted(f"{program.name} was stopped: {error}") from error
    if done.status or not target.is_file():
        lines = [line for line in (done.errors or done.output).splitlines() if line.strip()]
        told = lines[-1].strip()[-_TOLD_CHARACTERS:] if lines else "it said nothing"
        raise NotConverted(f"{program.name} ended with {done.status}: {told}")
