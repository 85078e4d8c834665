"""Every `proctor …` and `python -m …` line of the documentation names a command, options and settings that exist."""

import re
import shlex
from functools import cache
from pathlib import Path

import pytest
from fastapi import FastAPI

from backend.cli.main import app
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.presets import PRESETS
from backend.settings import PROJECT_ROOT
from backend.training.setting_texts import flatten
from backend.web.routing import guarded_routes
from benchmarks.__main__ import BENCHMARKS
from tests.docs.test_links import PAGES
from tests.ops.commands import command_tree

FENCED = re.compile(r"^```(?:sh|bash)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(proctor [a-z][^`]*)`")
MODULE = re.compile(r"\bpython -m ([\w.]+)((?: [^\s`#&|]+)*)")
ARGUMENT = re.compile(r"""add_argument\(\s*"([^"]+)\"""")


def commands_of(page: Path) -> list[str]:
    text = page.read_text()
    lines = [line for block in FENCED.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    parts = [part.strip() for line in [*lines, *INLINE.findall(text)] for part in re.split(r"&&|\$\(|#", line)]
    return [re.sub(r"^(\w+=\S* )+", "", part) for part in parts if re.match(r"(\w+=\S* )*proctor [a-z]", part)]


def problem_of(line: str) -> str | None:
    """Return what is wrong with a command line. `a|b`, `[--x]` and `…` are notation."""
    words = shlex.split(re.sub(r"[\[\]()]", " ", line.replace("…", "")))[1:]
    command = command_tree(app)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        name = words.pop(0)
        names = ["list"] if command.name == "rollouts" and name not in command.commands else name.split("|")
        if unknown := [part for part in names if part not in command.commands]:
            return f"no command {', '.join(unknown)}"
        command = command.commands[names[0]]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    used = {part for word in words for part in word.split("=")[0].split("|") if part.startswith("--")}
    if unknown := used - known - {"--help", "--version"}:
        return f"no option {', '.join(sorted(unknown))}"
    return problem_of_settings(line) if command.name == "train" else None


@cache
def settings() -> frozenset[str]:
    return frozenset(flatten(TrainingConfiguration().resolved()))


def problem_of_settings(line: str) -> str | None:
    """Return what is wrong with the preset and the names of the settings of a `proctor train` line."""
    presets = re.findall(r"--preset ([a-z0-9-]+)", line)
    names = re.findall(r"--set \"?([a-z][\w.]*)", line)
    unknown = [name for name in names if name not in settings() and not name.startswith("detectors.")]
    unknown += [name for name in presets if name not in PRESETS]
    return f"no setting or preset {', '.join(unknown)}" if set(unknown) - {"list"} else None


def problem_of_module(module: str, words: list[str]) -> str | None:
    """Return what is wrong with a `python -m` line of a module of this repository."""
    package, _, _name = module.partition(".")
    if not (PROJECT_ROOT / package).is_dir():
        return None  # someone else's
    path = PROJECT_ROOT / module.replace(".", "/")
    file = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.exists() or '__name__ == "__main__"' not in (source := file.read_text()):
        return f"no program {module}"
    names = [word for word in words if re.fullmatch(r"[a-z_]+", word)]
    if module == "benchmarks" and (unknown := [name for name in names if name not in BENCHMARKS]):
        return f"no benchmark {', '.join(unknown)}"
    unknown = [word for word in words if word.startswith("--") and word not in ARGUMENT.findall(source)]
    return f"no option {', '.join(unknown)}" if unknown else None


def test_a_wrong_line_is_found() -> None:
    assert problem_of("proctor eval tictactoe random --tasks 3") is None
    assert problem_of("proctor eval tictactoe random --taskz 3") == "no option --taskz"
    assert problem_of("proctor environment list") == "no command environment"
    assert problem_of("proctor rollouts last --wher x") == "no option --wher"
    assert problem_of("proctor train tictactoe --set grpo.stepps=3") == "no setting or preset grpo.stepps"
    assert problem_of("proctor train tictactoe --preset slow --set grpo.steps=3") == "no setting or preset slow"
    assert problem_of_module("benchmarks", ["rollouts", "--repeats", "1"]) is None
    assert problem_of_module("benchmarks", ["mastery"]) == "no benchmark mastery"
    assert problem_of_module("benchmarks", ["rollouts", "--repeat"]) == "no option --repeat"
    assert problem_of_module("benchmarks.mastery", []) == "no program benchmarks.mastery"
    assert problem_of_module("benchmarks.detectors", []) == "no program benchmarks.detectors"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_exist(page: Path) -> None:
    problems = [(line, problem) for line in commands_of(page) if (problem := problem_of(line))]
    for found in MODULE.finditer(page.read_text()):
        if problem := problem_of_module(found[1], found[2].split()):
            problems.append((found[0], problem))
    assert problems == []


def shape_of(path: str) -> str:
    """Return a path with each variable part as `*`: `{run_id}`, `ID` and `N` are alike."""
    return "/".join("*" if re.fullmatch(r"\{.*\}|[A-Z]+", part) else part for part in path.split("/"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_operations_exist(page: Path, whole_app: FastAPI) -> None:
    known = {(shape_of(path), method) for path, methods, _ in guarded_routes(whole_app) for method in methods}
    used = re.findall(r"`(GET|POST|PUT|PATCH|DELETE)\s+(/api/v1/[^`\s?]+)", page.read_text())
    assert [(method, path) for method, path in used if (shape_of(path.rstrip("/")), method) not in known] == []
