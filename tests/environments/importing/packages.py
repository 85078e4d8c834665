"""Foreign packages for tests, as they come: bytes by path, without a `proctor:` block."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

from backend.domain.environments.foreign import read_foreign
from backend.domain.environments.packages import MANIFEST_PATH
from backend.environments.import_package import make_ready
from backend.environments.import_sources import read_tree
from backend.environments.imports import probe_manifest
from backend.settings import get_settings

FOREIGN = Path(__file__).parent / "foreign"

MODELS = b"""\
from openenv.core.env_server import Action, Observation


class DoorAction(Action):
    door: int


class DoorObservation(Observation):
    prompt: str = ""
    legal_doors: list[int] = []
    parts: dict[str, float] = {}
"""

ENVIRONMENT = b"""\
import random
from openenv.core.env_server import Environment, State
from MODELS import DoorAction, DoorObservation


class DoorEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.door = 0

    def reset(self, seed=None, episode_id=None, **arguments):
        self.door = random.Random(seed).randrange(3)
        return DoorObservation(prompt=f"Room {seed}: which door?", legal_doors=[0, 1, 2])

    def step(self, action: DoorAction, timeout_s=None, **arguments):
        parts = {"hit": float(action.door == self.door), "tidy": 0.25}
        return DoorObservation(prompt="Over.", done=True, reward=sum(parts.values()), parts=parts)

    @property
    def state(self):
        return State(step_count=0, expected_answer=str(self.door))
"""

APP = b"""\
from openenv.core.env_server import create_app
from MODELS import DoorAction, DoorObservation
from ENVIRONMENT import DoorEnvironment

app = create_app(DoorEnvironment, DoorAction, DoorObservation, env_name="doors", max_concurrent_envs=4)
"""

STYLES = {
    "folder": (b"models", b"server.doors_environment"),
    "parent": (b"..models", b".doors_environment"),
    "long name": (b"worlds.doors.models", b"worlds.doors.server.doors_environment"),
}
"""How a package's own modules are called in it: from its folder, from its parent, under a longer name."""


def door_package(style: str = "folder", manifest: str = "name: doors\napp: server.app:app\n") -> dict[str, bytes]:
    models, environment = STYLES[style]
    return {
        "openenv.yaml": manifest.encode(),
        "__init__.py": b"",
        "models.py": MODELS,
        "server/__init__.py": b"",
        "server/app.py": APP.replace(b"MODELS", models).replace(b"ENVIRONMENT", environment),
        "server/doors_environment.py": ENVIRONMENT.replace(b"MODELS", models),
        "pyproject.toml": b'[project]\nname = "doors"\nversion = "1"\ndependencies = ["openenv[core]>=0.2.2"]\n',
    }


def zipped(files: dict[str, bytes], folder: str = "") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, data in files.items():
            archive.writestr(f"{folder}/{path}" if folder else path, data)
    return buffer.getvalue()


def python_with(data: Path, distribution: str) -> Path:
    """A program that runs Python with the environment, in a host's data folder, that has `name-version`."""
    [found] = (data / "environments").glob(f"*/lib/python*/site-packages/{distribution}.dist-info")
    return python_over(found.parent, data / f"python-{distribution}")


def python_over(site_packages: Path, program: Path) -> Path:
    """A program that runs the shared runtime's Python with these isolated modules and its arguments."""
    base = get_settings().runtime_python.resolve()
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{site_packages}:$PYTHONPATH" exec "{base}" "$@"\n')
    program.chmod(0o755)
    return program


def v0_zoo(kind: str) -> dict[str, str]:
    """An environment of `verifiers` 0.3 as the import makes it ready."""
    return _zoo("v0_zoo", {"kind": kind})


def v1_zoo(kind: str) -> dict[str, str]:
    """A taskset of `verifiers` 0.4."""
    return _zoo("v1_zoo", {"task": {"kind": kind}})


def _zoo(name: str, arguments: dict[str, Any]) -> dict[str, str]:
    variables = {"VERIFIERS_ARGUMENTS": json.dumps(arguments)}
    ready = make_ready(read_foreign(read_tree(FOREIGN / name), name), variables=variables)
    return {**ready.files, MANIFEST_PATH: probe_manifest(ready.manifest)}
