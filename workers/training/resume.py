"""The trainer's own states on disk, from which a run that was cut goes on."""

import os
import re
from pathlib import Path
from typing import Any

_MARK = "complete"
_NAME = re.compile(r"^checkpoint-(\d+)$")


class WithoutCard:
    """Of a trainer of TRL: its states are for a resume alone, and no card to publish them is rendered at each save."""

    def create_model_card(self, *_: Any, **__: Any) -> None:
        return


def mark_complete(folder: Path) -> None:
    """Say that all files of the state are written. A state without the mark was cut short and is not used."""
    for path in folder.iterdir():
        _sync(path)
    (folder / _MARK).touch()
    _sync(folder)


def newest_complete(folder: Path) -> Path | None:
    """The complete state of the latest step, if there is one."""
    found = [
        (int(match[1]), path)
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (match := _NAME.match(path.name)) and is_complete(path)
    ]
    return max(found)[1] if found else None


def newest_under(folder: Path) -> Path | None:
    """The complete state that was written last, of whichever stage."""
    marks = sorted(folder.rglob(_MARK), key=lambda mark: mark.stat().st_mtime_ns)
    return marks[-1].parent if marks else None


def is_complete(state: Path) -> bool:
    return (state / _MARK).exists()


def step_of(state: Path | None) -> int:
    return int(state.name.removeprefix("checkpoint-")) if state else 0


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
