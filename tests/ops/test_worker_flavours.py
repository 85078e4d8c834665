"""Worker images: what each flavor installs, and that no worker needs packages of the web."""

import subprocess
import sys
import tomllib

import pytest

from backend.settings import PROJECT_ROOT
from scripts.dependencies import FLAVOURS, WEB, normalized, worker_requirements

PROJECT = PROJECT_ROOT / "pyproject.toml"
ENTRIES = (
    "workers.tasks.celery_app",
    "workers.tasks.housekeeping",
    "workers.environments.host",
    "workers.tasks.training",
    "workers.tasks.exports",
    "workers.tasks.evaluations",
)
MODELS = ("workers.training.run", "workers.models.play", "workers.training.export")
FORBIDDEN = ("fastapi", "starlette", "uvicorn", "argon2", "markdown_it", "multipart")


def import_without_the_web(modules: tuple[str, ...]) -> str:
    """What goes wrong when the web's packages are not there; empty when nothing does."""
    blocked = f"import sys; sys.modules.update(dict.fromkeys({FORBIDDEN!r}))"
    imports = "; ".join(f"import {module}" for module in modules)
    done = subprocess.run(
        [sys.executable, "-c", f"{blocked}; {imports}"], cwd=PROJECT_ROOT, capture_output=True, text=True
    )
    return done.stderr if done.returncode else ""


@pytest.mark.slow
def test_no_worker_needs_what_only_the_web_has() -> None:
    assert import_without_the_web(ENTRIES) == ""


@pytest.mark.slow
def test_no_training_process_does_either() -> None:
    assert import_without_the_web(MODELS) == ""


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_flavour_lists_its_engine_and_nothing_of_the_web(flavour: str) -> None:
    names = {normalized(line) for line in worker_requirements(flavour)}
    assert not names & WEB
    assert ("trl" in names) is (flavour != "core")
    assert ("bitsandbytes" in names) is flavour.startswith("gpu")
    assert ("unsloth" in names) is (flavour == "gpu-unsloth")


def test_web_packages_are_dependencies_of_ours() -> None:
    described = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
    assert {normalized(line) for line in described} >= WEB
