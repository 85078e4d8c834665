"""What the command line says: tables for people, JSON for programs, and how it ends."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

OK, BAD_RESULT, WRONG_USAGE = 0, 1, 2


def fail(message: str, status: int = WRONG_USAGE) -> NoReturn:
    """End with a message on standard error."""
    Console(stderr=True, soft_wrap=True).print(f"proctor: {message}", style="red", markup=False, highlight=False)
    raise typer.Exit(status)


def say(text: str, style: str | None = None) -> None:
    """A line for a person, as it is."""
    Console(soft_wrap=True, highlight=False).print(text, style=style, markup=False)


def write_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def write_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str) -> None:
    console = Console(highlight=False)
    if not rows:
        console.print(empty, style="dim")
        return
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 3, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(plain(value) for value in row))
    console.print(table)


def write_fields(fields: Mapping[str, object]) -> None:
    width = max(map(len, fields), default=0)
    console = Console(highlight=False, soft_wrap=True)
    for name, value in fields.items():
        console.print(f"{name:<{width}}  {plain(value)}", markup=False)


def plain(value: Any) -> str:
    """A value as one line of text."""
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
