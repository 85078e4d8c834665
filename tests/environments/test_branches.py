"""Branches in the source of a package: which there are, which belong to the grader, and how they are recorded."""

import ast
from typing import Any

import pytest

from backend.domain.environments.branches import (
    HIT,
    MAX_SOURCE,
    PASS,
    Branch,
    described,
    grader_branches,
    read_sources,
)
from backend.environments.library import library_names, load_package

GRADER = '''
from __future__ import annotations
from .parsing import read as parse

class Quiz:
    def step(self, action):
        return self.play() or 0

    def reset(self):
        if not self.answer:
            return None

    def right(self, unused=None):
        """Compares."""
        given = parse(self.given)
        if given is None or not given.strip():
            return 0.0
        for letter in given:
            if letter == "x":
                break
        match given:
            case "yes" | "no" if len(given) > 1:
                return 0.5
            case _:
                pass
        try:
            return 1.0 if int(given) == self.answer else 0.0
        except (ValueError, TypeError) as error:
            return float(len([e for e in given if e]) > 90 and bool(error))

    def play(self):
        while True:
            return self.answer and 3
'''
PARSING = """
def read(text):
    return text if text else None

def right_by_chance(text):
    return 1 if text else 0
"""
FILES = {"server/quiz.py": GRADER, "server/parsing.py": PARSING, "README.md": "if x: y"}


def run(files: dict[str, str]) -> tuple[list[Branch], bytearray, dict[str, Any]]:
    """Execute the recording copies of files; return the branches, the record and the names they define."""
    sources = read_sources(files)
    branches = [branch for source in sources for branch in source.branches]
    record = bytearray(len(branches))

    def passes(number: int, value: object) -> object:
        record[number if value else number + 1] = 1
        return value

    names: dict[str, Any] = {HIT: record.__setitem__, PASS: passes}
    for source in sources:
        source.tree.body = [each for each in source.tree.body if not isinstance(each, ast.ImportFrom)]
        exec(compile(ast.fix_missing_locations(source.tree), source.path, "exec"), names)
    return branches, record, names


def test_each_outcome_of_each_decision_is_recorded() -> None:
    branches, record, names = run(FILES)
    names["parse"] = names["read"]
    quiz = names["Quiz"]()
    quiz.answer = 7
    earned = []
    for given in ("7", "8", "xy", "yes", "", " "):
        quiz.given = given
        earned.append(quiz.right())
    assert earned == [1.0, 0.0, 0.0, 0.5, 0.0, 0.0]
    assert quiz.play() == 3
    missed = {
        (branch.function, branch.line, branch.outcome)
        for branch, seen in zip(branches, record, strict=True)
        if not seen
    }
    assert missed == {
        ("Quiz.step", 7, "true"),
        ("Quiz.step", 7, "false"),
        ("Quiz.reset", 10, "true"),
        ("Quiz.reset", 10, "false"),
        ("Quiz.right", 22, "false"),
        ("Quiz.right", 29, "false"),
        ("Quiz.right", 29, "true"),
        ("Quiz.play", 33, "false"),
        ("right_by_chance", 6, "true"),
        ("right_by_chance", 6, "false"),
    }


def test_the_grader_is_what_the_columns_call() -> None:
    def functions(columns: set[str], *, has_one_turn: bool = False) -> set[str]:
        found = grader_branches(read_sources(FILES), columns, has_one_turn=has_one_turn)
        return {branch.function for branch in found.values()}

    assert functions({"right"}) == {"Quiz.right", "read"}
    assert functions({"right"}, has_one_turn=True) == {"Quiz.right", "read", "Quiz.step", "Quiz.play"}
    assert functions({"score"}) == {"Quiz.step", "Quiz.play"}
    assert grader_branches(read_sources({"server/quiz.py": "x = 1"}), {"score"}, has_one_turn=True) == {}


def test_a_branch_is_described_with_its_line() -> None:
    [first, *_] = grader_branches(read_sources(FILES), {"right"}, has_one_turn=False).values()
    assert described(first, FILES) == {
        "path": "server/parsing.py",
        "line": 3,
        "function": "read",
        "source": "return text if text else None",
        "condition": "text",
        "outcome": "true",
    }


@pytest.mark.slow
def test_what_cannot_be_read_is_left_out_and_shifts_no_number() -> None:
    plain = [source.first for source in read_sources(FILES)]
    more = {"a.py": "if (", "b.py": "x = " + "(" * 500, "c.py": "#" * MAX_SOURCE + "\n", "d.py": "\0"}
    assert [source.first for source in read_sources(FILES | more)] == plain
    many = "\n".join("x = 1 if x else 2" for _ in range(20_000))
    assert [source.path for source in read_sources({"a.py": many, "b.py": "x = 1 if a else 2"})] == ["b.py"]


def test_every_built_in_package_compiles_with_its_record() -> None:
    for name in library_names():
        for source in read_sources(load_package(name)):
            compile(ast.fix_missing_locations(source.tree), source.path, "exec", dont_inherit=True)
