"""Output of commands: tables for people, JSON for programs, exit codes, and the options that many commands have."""

import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

OK, BAD_RESULT, WRONG_USAGE = 0, 1, 2

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Return at once instead of waiting.")]

group = partial(typer.Typer, no_args_is_help=True, rich_markup_mode=None)
"""A group of commands."""


def fail(message: str, status: int = WRONG_USAGE) -> NoReturn:
    write_error(message)
    raise typer.Exit(status)


def write_error(message: str) -> None:
    say(f"proctor: {message}", "red", is_error=True)


def say(text: str, style: str | None = None, *, is_error: bool = False) -> None:
    """Print a line without markup. `is_error`: on standard error, which keeps standard output for programs."""
    console(is_error=is_error).print(text, style=style, markup=False)


def console(*, is_error: bool = False) -> Console:
    """Return a console as wide as the terminal, or wide enough for any table if there is none."""
    stream = sys.stderr if is_error else sys.stdout
    width = None if stream.isatty() else 240
    return Console(file=stream, width=width, soft_wrap=True, highlight=False)


def write_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def write_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str) -> None:
    if not rows:
        say(empty, "dim")
        return
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 3, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(plain(value) for value in row))
    console().print(table, soft_wrap=False)


def write_fields(fields: Mapping[str, object]) -> None:
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        say(f"{name:<{width}}  {plain(value)}")


def plain(value: object) -> str:
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}"
        case list() | dict():
            return json.dumps(value, default=str)
        case _:
            return str(value)
