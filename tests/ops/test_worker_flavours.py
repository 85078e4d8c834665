"""Worker images: what each flavour installs, and that no worker needs what only the web has."""

import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement

from backend.settings import PROJECT_ROOT
from scripts.worker_requirements import FLAVOURS, WEB, main, name_of, requirements

PROJECT = PROJECT_ROOT / "pyproject.toml"
ENTRIES = (
    "workers.jobs.celery_app",
    "workers.jobs.housekeeping",
    "workers.environments.host",
    "workers.jobs.training",
    "workers.jobs.exports",
    "workers.jobs.evaluation",
)
MODELS = ("workers.training.run", "workers.models.evaluate", "workers.training.export")
FORBIDDEN = ("fastapi", "starlette", "uvicorn", "argon2", "markdown_it", "multipart")


def import_without_the_web(modules: tuple[str, ...]) -> str:
    """What goes wrong when the web's packages are not there; empty when nothing does."""
    blocked = f"import sys; sys.modules.update(dict.fromkeys({FORBIDDEN!r}))"
    imports = "; ".join(f"import {module}" for module in modules)
    done = subprocess.run(
        [sys.executable, "-c", f"{blocked}; {imports}"], cwd=PROJECT_ROOT, capture_output=True, text=True
    )
    return done.stderr if done.returncode else ""


def test_no_worker_needs_what_only_the_web_has() -> None:
    assert import_without_the_web(ENTRIES) == ""


@pytest.mark.slow
def test_no_training_process_does_either() -> None:
    assert import_without_the_web(MODELS) == ""


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_flavour_lists_its_engine_and_nothing_of_the_web(flavour: str) -> None:
    names = {name_of(line) for line in requirements(flavour, PROJECT)}
    assert not names & WEB
    assert ("trl" in names) is (flavour != "core")
    assert ("bitsandbytes" in names) is flavour.startswith("gpu")
    assert ("unsloth" in names) is (flavour == "gpu-unsloth")


@pytest.mark.parametrize("flavour", FLAVOURS[2:])
def test_a_flavours_constraints_fit_what_it_asks_for(flavour: str) -> None:
    lines = (PROJECT_ROOT / f"constraints-{flavour}.txt").read_text().split()
    pinned = dict(line.split("==") for line in lines)
    assert {"trl", "transformers", "datasets", "peft"} <= pinned.keys()
    for line in requirements(flavour, PROJECT):
        wanted = Requirement(line)
        if wanted.name in pinned:
            assert wanted.specifier.contains(pinned[wanted.name]), line


def test_the_gpus_flavour_has_the_versions_that_are_tested_on_the_cpu() -> None:
    tested = (PROJECT_ROOT / "constraints.txt").read_text().split()
    lines = (PROJECT_ROOT / "constraints-gpu.txt").read_text().split()
    assert [line for line in lines if line not in tested] == []


def test_web_packages_are_dependencies_of_ours() -> None:
    described = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
    assert {name_of(line) for line in described} >= WEB


def test_an_unknown_flavour_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["turbo"]) == 2
    assert "gpu-vllm" in capsys.readouterr().err
    assert main(["gpu"]) == 0
    assert "trl==1.16.0" in capsys.readouterr().out
