"""Modules of a package that need nothing but Python, without its server: rules of games, makers of tasks."""

import importlib
import sys
from types import ModuleType

from backend.environments.library import PACKAGES


def module_of(package: str, name: str) -> ModuleType:
    """`server/<name>.py` under another name: the package's `__init__` would import openenv."""
    parent = f"pure_{package.replace('/', '_')}"
    for module, folder in ((parent, PACKAGES / package), (f"{parent}.server", PACKAGES / package / "server")):
        if module not in sys.modules:
            sys.modules[module] = ModuleType(module)
            sys.modules[module].__path__ = [str(folder)]
    return importlib.import_module(f"{parent}.server.{name}")
