"""The paths of a package as folders and files."""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Folder:
    """Folders first, then files, each by name."""

    name: str
    path: str
    folders: list["Folder"] = field(default_factory=list)
    files: list[tuple[str, str]] = field(default_factory=list)
    """(name, whole path)"""

    def holds(self, path: str) -> bool:
        return path.startswith(f"{self.path}/")


def file_tree(paths: Iterable[str]) -> Folder:
    root = Folder("", "")
    known = {"": root}
    for path in sorted(paths):
        folder, _, name = path.rpartition("/")
        _folder(known, folder).files.append((name, path))
    return root


def _folder(known: dict[str, Folder], path: str) -> Folder:
    if path not in known:
        parent, _, name = path.rpartition("/")
        known[path] = Folder(name, path)
        _folder(known, parent).folders.append(known[path])
    return known[path]
