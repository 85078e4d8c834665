"""Every `proctor …` line of the documentation names a command and options that there are."""

import re
import shlex
from pathlib import Path

import pytest
from fastapi import FastAPI

from backend.cli.main import app
from backend.web.routing import guarded_routes
from tests.docs.test_links import PAGES
from tests.ops.commands import command_tree

FENCED = re.compile(r"^```(?:sh|bash)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(proctor [a-z][^`]*)`")


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
    unknown = used - known - {"--help", "--version"}
    return f"no option {', '.join(sorted(unknown))}" if unknown else None


def test_a_wrong_line_is_found() -> None:
    assert problem_of("proctor eval tictactoe random --tasks 3") is None
    assert problem_of("proctor eval tictactoe random --taskz 3") == "no option --taskz"
    assert problem_of("proctor environment list") == "no command environment"
    assert problem_of("proctor rollouts last --wher x") == "no option --wher"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_exist(page: Path) -> None:
    problems = [(line, problem) for line in commands_of(page) if (problem := problem_of(line))]
    assert problems == []


def shape_of(path: str) -> str:
    """Return a path with each variable part as `*`: `{run_id}`, `ID` and `N` are alike."""
    return "/".join("*" if re.fullmatch(r"\{.*\}|[A-Z]+", part) else part for part in path.split("/"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_operations_exist(page: Path, whole_app: FastAPI) -> None:
    known = {(shape_of(path), method) for path, methods, _ in guarded_routes(whole_app) for method in methods}
    used = re.findall(r"`(GET|POST|PUT|PATCH|DELETE)\s+(/api/v1/[^`\s?]+)", page.read_text())
    assert [(method, path) for method, path in used if (shape_of(path.rstrip("/")), method) not in known] == []
