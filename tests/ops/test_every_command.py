"""What holds for every command of `proctor`."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from backend.cli.main import app

FOR_PEOPLE = {("demo",), ("env", "play"), ("environments", "play"), ("mcp",)}
"""They stream their output or speak another protocol, and return no result."""


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(command, TyperGroup):
        for name, part in command.commands.items():
            yield from commands(part, (*path, name))
    else:
        yield path, command


EVERY = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_it_shows_what_it_does_and_speaks_json(path: tuple[str, ...]) -> None:
    command = EVERY[path]
    assert command.help
    options = {option for parameter in command.params for option in parameter.opts}
    assert "--json" in options or path in FOR_PEOPLE
    assert [each.name for each in command.params if not (each.hidden or each.help)] == [], "parameters without help"
