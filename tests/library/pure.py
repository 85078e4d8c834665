"""Modules of a package that need nothing but Python, without its server: rules of games, makers of tasks."""

import importlib
import sys
from types import ModuleType

from backend.environments.library import PACKAGES


def module_of(package: str, name: str) -> ModuleType:
    """`server/<name>.py`, under a name of its own: the package's `__init__` would ask for openenv."""
    parent = f"pure_{package.replace('/', '_')}"
    if parent not in sys.modules:
        folder = ModuleType(parent)
        folder.__path__ = [str(PACKAGES / package / "server")]
        sys.modules[parent] = folder
    return importlib.import_module(f"{parent}.{name}")
