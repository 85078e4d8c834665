"""Read direct requirements from `pyproject.toml` and pins with hashes from constraints files. Standard library only."""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WEB = frozenset(
    ("argon2-cffi", "fastapi", "markdown-it-py", "nh3", "python-multipart", "selectolax", "uvicorn", "watchfiles")
)
"""Dependencies of the web and the command line only. Workers never load the web, and vLLM pins a FastAPI that the web
cannot use."""


@dataclass(frozen=True)
class Flavour:
    """One kind of worker (docs/engines.md): its extra, its constraints file and what that file cannot pin."""

    extra: str
    pins: str = "constraints.txt"
    unpinned: tuple[str, ...] = ()
    """Name patterns of packages that are installed without a known hash."""


FLAVOURS = {
    "core": Flavour(""),
    "cpu": Flavour("train-cpu"),
    # the GPU and its driver decide which torch fits
    "gpu": Flavour("train-gpu", unpinned=("torch", "triton", "nvidia-*", "cuda-*")),
    "gpu-vllm": Flavour("train-gpu-vllm", "constraints-gpu-vllm.txt"),
    # Unsloth requires a newer certifi than package indexes offered when the file was made
    "gpu-unsloth": Flavour("train-gpu-unsloth", "constraints-gpu-unsloth.txt", unpinned=("certifi",)),
}

_NAME = re.compile(r"^[A-Za-z0-9._-]+")
_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)")
_HASH = re.compile(r"--hash=(sha256:[0-9a-f]{64})")


@dataclass
class Pin:
    """One release and the hashes of all its files."""

    line: str
    """Name, version and environment marker."""
    name: str
    version: str
    hashes: list[str] = field(default_factory=list)


def normalized(requirement: str) -> str:
    """Return the package's name as package indexes compare it."""
    found = _NAME.match(requirement)
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else requirement


def direct_requirements(
    extras: Iterable[str] = (), groups: Iterable[str] = (), *, with_web: bool = True, project: Path | None = None
) -> list[str]:
    """Return the requirements of Proctor, its build backend, the extras and the dependency groups."""
    described = tomllib.loads((project or ROOT / "pyproject.toml").read_text())
    own = [line for line in described["project"]["dependencies"] if with_web or normalized(line) not in WEB]
    found = [*described["build-system"]["requires"], *own]
    for extra in extras:
        found += _extra_requirements(described, extra)
    for group in groups:
        found += described["dependency-groups"][group]
    return found


def worker_requirements(flavour: str) -> list[str]:
    """Return what a worker of this variant needs: Proctor's dependencies without the web's, and the variant's extra."""
    extra = FLAVOURS[flavour].extra
    return direct_requirements([extra] if extra else [], with_web=False)


def extra_requirements(extra: str) -> list[str]:
    """Return the requirements of one extra alone."""
    return _extra_requirements(tomllib.loads((ROOT / "pyproject.toml").read_text()), extra)


def _extra_requirements(described: dict[str, Any], extra: str) -> list[str]:
    """Follow references to other extras of Proctor."""
    found = []
    for line in described["project"]["optional-dependencies"][extra]:
        other = re.fullmatch(r"proctor\[([a-z-]+)\]", line)
        found += _extra_requirements(described, other[1]) if other else [line]
    return found


def read_pins(file: Path) -> list[Pin]:
    """Return the releases that a constraints file allows."""
    pins: list[Pin] = []
    for line in file.read_text().splitlines():
        if match := _PIN.match(line):
            without_hashes = line.partition("--hash")[0].rstrip("\\ ")
            pins.append(Pin(without_hashes, match["name"], match["version"]))
        if pins:
            pins[-1].hashes += _HASH.findall(line)
    return pins
