"""A package may be made to run from its own folder, from its parent, or under a longer name; its code says which.

Names are read from the package's `pyproject.toml` and from its own imports: `from envs.maze.models import …` in a
package with a `models.py` says that it calls itself `envs.maze`.
"""

import importlib
import importlib.machinery
import importlib.util
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

_IMPORT = re.compile(r"^\s*(?:from|import)\s+([A-Za-z_][\w.]*)", re.MULTILINE)
_FOREIGN = {"openenv", "openenv_core"}
_MOST_BYTES = 200_000
"""Maximum size of one source file that is scanned."""


def import_app(module_name: str, name: str, root: str) -> ModuleType:
    """The module of the app. `name`: of the folder `root` that the package lies in."""
    own_names = find_names(root, module_name)
    sys.meta_path.append(_OwnNames(root, own_names))  # last: what is installed goes first
    try:
        return importlib.import_module(module_name)
    except ImportError as error:
        first = error
    for own_name in [*own_names, name]:
        _forget(root)
        try:
            return importlib.import_module(f"{own_name}.{module_name}")
        except ImportError as error:
            if "relative import" in str(first):
                first = error
    raise first


def _forget(root: str) -> None:
    """Drop what an attempt has loaded of the package."""
    for key, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "")
        if file and os.path.abspath(str(file)).startswith(root):
            del sys.modules[key]


def find_names(root: str, app_module: str) -> list[str]:
    """The dotted names that the package calls itself by, most likely first."""
    names = dict.fromkeys(_declared_names(root))
    for dotted in [app_module, *_imports(root)]:
        parts = dotted.split(".")
        if parts[0] in _FOREIGN or parts[0] in sys.stdlib_module_names or _has(root, parts[0]):
            continue
        for count in range(1, len(parts)):
            if _has(root, *parts[count:]):
                names[".".join(parts[:count])] = None
                break
    return list(names)


def _declared_names(root: str) -> Iterator[str]:
    """Of setuptools' `package-dir = {"maze_env" = "."}`."""
    try:
        with open(os.path.join(root, "pyproject.toml"), "rb") as file:
            folders = tomllib.load(file)["tool"]["setuptools"]["package-dir"]
        yield from (str(name) for name, folder in folders.items() if name and folder == ".")
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError):
        return  # none are declared


def _imports(root: str) -> Iterator[str]:
    for folder, _, files in os.walk(root):
        for file in sorted(files):
            if file.endswith(".py"):
                with open(os.path.join(folder, file), encoding="utf-8", errors="replace") as source:
                    yield from _IMPORT.findall(source.read(_MOST_BYTES))


def _has(root: str, *parts: str) -> bool:
    path = os.path.join(root, *parts)
    return os.path.isfile(path + ".py") or os.path.isdir(path)


class _OwnNames(MetaPathFinder):
    """Leads the package's own names to its folder."""

    def __init__(self, root: str, names: Sequence[str]) -> None:
        self._root, self._names = root, names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname in self._names:
            start = os.path.join(self._root, "__init__.py")
            if os.path.isfile(start):
                return importlib.util.spec_from_file_location(fullname, start, submodule_search_locations=[self._root])
            return self._folder(fullname, [self._root])
        if any(name.startswith(fullname + ".") for name in self._names):
            return self._folder(fullname, [])
        return None

    @staticmethod
    def _folder(fullname: str, locations: list[str]) -> importlib.machinery.ModuleSpec:
        spec = importlib.machinery.ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = locations
        return spec
