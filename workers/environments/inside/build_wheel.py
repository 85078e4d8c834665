"""Build the wheel of a source distribution inside both rings of the jail: its build code is foreign code.

It has no network, limits, and of the host's files only the compiler and headers, if there are any. The archive arrives
through one descriptor; the wheel leaves through another, its name first.
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

_SOURCE, _RESULT = Path("/tmp/source"), Path("/tmp/wheel")


def main(arguments: Sequence[str]) -> None:
    """`arguments`: the descriptors of the archive and of the wheel."""
    archive, wheel = map(int, arguments)
    linux.limit_heap_arenas()
    jail.enclose_alone(jail.ServerLimits(1 << 30, tmp_bytes=256 << 20, threads=64, files=1024, cpus=2))
    sys.prefix = sys.exec_prefix = jail.PYTHON_FOLDER
    jail.add_site_packages([jail.place_of(0)])
    site.execsitecustomize()
    _SOURCE.mkdir()
    with open(archive, "rb") as file:
        if zipfile.is_zipfile(file):
            zipfile.ZipFile(file).extractall(_SOURCE)
        else:
            file.seek(0)
            with tarfile.open(fileobj=file) as tar:
                if hasattr(tarfile, "data_filter"):
                    tar.extractall(_SOURCE, filter="data")
                else:  # Python 3.11.3 and older: a hostile archive harms only this sandbox
                    tar.extractall(_SOURCE)
    [root] = _SOURCE.iterdir()
    os.chdir(root)
    # call the build backend (PEP 517) in this process; there is nothing here that it could harm
    os.environ.clear()  # noqa: TID251
    os.environ.update({"PATH": jail.PROGRAMS_FOLDER, "HOME": "/tmp", "LANG": "C.UTF-8"})  # noqa: TID251
    os.environ.update(CC="gcc", CXX="g++", LDSHARED="gcc -shared", LDCXXSHARED="g++ -shared")  # noqa: TID251
    _RESULT.mkdir()
    path = Path("pyproject.toml")
    system = tomllib.loads(path.read_text()).get("build-system", {}) if path.exists() else {}
    for folder in reversed(system.get("backend-path", [])):
        sys.path.insert(0, os.path.abspath(folder))
    module, _, attribute = str(system.get("build-backend", "setuptools.build_meta:__legacy__")).partition(":")
    sys.argv[:] = ["build"]
    backend: Any = importlib.import_module(module)
    for part in filter(None, attribute.split(".")):
        backend = getattr(backend, part)
    built = _RESULT / str(backend.build_wheel(str(_RESULT)))
    with open(wheel, "wb") as file:
        file.write(built.name.encode() + b"\n" + built.read_bytes())
