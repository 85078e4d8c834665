"""The log of building a package's environment, without credentials, addresses and paths of this machine."""

import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from backend.settings import PROJECT_ROOT

LOG_CHARACTERS = 100_000
_ADDRESS = re.compile(r"\b(?:https?|file|ftp)://[^\s'\"`<>)\],]+")
_ARCHIVE = re.compile(r"/([\w.+!-]+\.(?:whl|tar\.gz|tgz|zip|tar\.bz2))(?:[#?.].*)?$")
_FEWEST_CHARACTERS = 3


def append(log: Path, text: str) -> None:
    with log.open("a") as file:
        file.write(without_addresses(text))


def without_addresses(text: str) -> str:
    """Addresses may hold credentials, and those of a package index may be internal; names of archives stay."""
    return _ADDRESS.sub(_hidden, text)


def _hidden(found: re.Match[str]) -> str:
    archive = _ARCHIVE.search(found[0])
    return f"<address>/{archive[1]}" if archive else "<address>"


class PathFilter:
    """Replaces folders of this machine in texts for users."""

    def __init__(self, folders: Mapping[Path, str]) -> None:
        names = {
            Path.home(): "~",
            Path(sys.prefix): "<python>",
            Path(sys.base_prefix): "<python>",
            PROJECT_ROOT: "<proctor>",
            **folders,
        }
        known = {str(path): name for folder, name in names.items() for path in (folder.absolute(), folder.resolve())}
        known.pop(tempfile.gettempdir(), None)  # the same in every sandbox
        self._names = {path: name for path, name in known.items() if len(path) >= _FEWEST_CHARACTERS}
        longest_first = sorted(self._names, key=len, reverse=True)
        self._paths = re.compile(rf"(?:{'|'.join(map(re.escape, longest_first))})(?![\w.-])")

    def clean(self, text: str) -> str:
        return self._paths.sub(lambda found: self._names[found[0]], without_addresses(text))
