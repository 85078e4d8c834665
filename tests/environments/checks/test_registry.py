"""Every check has an example of code that meets it."""

import ast
import inspect

import yaml

from workers.environments.checks.base import failed, passed
from workers.environments.checks.registry import CHECKS, _result


def test_every_check_shows_code_that_meets_it() -> None:
    """Each part of an example is Python, YAML or JSON."""
    for check in CHECKS:
        for part in inspect.cleandoc(check.example).split("\n\n"):
            try:
                ast.parse(part)
            except SyntaxError:
                assert isinstance(yaml.safe_load(part), dict), (check.id, part)
        assert max(map(len, check.example.splitlines())) <= 112, check.id


def test_only_a_result_that_needs_it_carries_the_example() -> None:
    check = CHECKS[0]
    assert _result(check, failed("It does not start.")).example.startswith("def reset(")
    assert _result(check, passed("It starts.")).example == ""
