"""Builds the wheel of a source distribution inside both rings of the jail: its build code is foreign code.

No network, limits, and of the host's files only its compiler and its headers, where it has any. The archive comes by
one descriptor; the wheel leaves by another, its name first.
"""

import importlib
import os
import site
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from proctor_sandbox import linux
from workers.environments.inside import jail

LIMITS = jail.Limits(memory_bytes=1 << 30, tmp_bytes=256 << 20, threads=64, files=1024, cpus=2)
_SOURCE, _RESULT = Path("/tmp/source"), Path("/tmp/wheel")
_VARIABLES = {
    "PATH": jail.PROGRAMS_FOLDER,
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "CC": "gcc",
    "CXX": "g++",
    "LDSHARED": "gcc -shared",
    "LDCXXSHARED": "g++ -shared",
}
_LEGACY = "setuptools.build_meta:__legacy__"


def main(arguments: Sequence[str]) -> None:
    """`arguments`: the descriptors of the archive and of the wheel."""
    archive, wheel = map(int, arguments)
    linux.die_with_parent()
    linux.set_dumpable(False)
    linux.limit_heap_arenas()
    child = os.fork()
    if child:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 255)
    jail.enclose_server(LIMITS, lambda folder: None)
    sys.prefix = sys.exec_prefix = jail.PYTHON_FOLDER
    jail.add_site_packages([jail.place_of(0)])
    site.execsitecustomize()
    _unpack(archive)
    _hand_over(_build(), wheel)


_CAREFULLY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Python 3.11.3 and older know no filters; what an archive does then, it does to this sandbox."""


def _unpack(descriptor: int) -> None:
    _SOURCE.mkdir()
    with open(descriptor, "rb") as file:
        if zipfile.is_zipfile(file):
            zipfile.ZipFile(file).extractall(_SOURCE)
        else:
            file.seek(0)
            with tarfile.open(fileobj=file) as archive:
                archive.extractall(_SOURCE, **_CAREFULLY)
    [root] = _SOURCE.iterdir()
    os.chdir(root)


def _build() -> Path:
    """Call the build backend (PEP 517) in this process; there is nothing here that it could harm."""
    os.environ.clear()  # noqa: TID251
    os.environ.update(_VARIABLES)  # noqa: TID251
    _RESULT.mkdir()
    system = _build_system()
    for folder in reversed(system.get("backend-path", [])):
        sys.path.insert(0, os.path.abspath(folder))
    module, _, attribute = str(system.get("build-backend", _LEGACY)).partition(":")
    sys.argv[:] = ["build"]
    backend: Any = importlib.import_module(module)
    for part in filter(None, attribute.split(".")):
        backend = getattr(backend, part)
    return _RESULT / str(backend.build_wheel(str(_RESULT)))


def _build_system() -> dict[str, Any]:
    path = Path("pyproject.toml")
    return dict(tomllib.loads(path.read_text()).get("build-system", {})) if path.exists() else {}


def _hand_over(wheel: Path, descriptor: int) -> None:
    with open(descriptor, "wb") as file:
        file.write(wheel.name.encode() + b"\n" + wheel.read_bytes())
