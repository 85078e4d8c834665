"""Bodies of the tests' jobs: each appends a line with the process and the attempt to a file."""

import os
import time
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.orm import Session

from backend.errors import NotFound
from workers.tasks.registry import JobContext


def write(context: JobContext) -> None:
    with Path(context.arguments["file"]).open("a") as file:
        file.write(f"{os.getpid()} {context.attempt}\n")


def wait(context: JobContext) -> None:
    """Until the file `release` is there."""
    write(context)
    while not Path(context.arguments["release"]).exists():
        time.sleep(0.05)


def fail(context: JobContext) -> None:
    write(context)
    raise RuntimeError("the disk is made of cheese")


def refuse(context: JobContext) -> None:
    write(context)
    raise NotFound("This checkpoint was deleted.")


def give_up(session: Session, context: JobContext, reason: str) -> None:
    """The follow-up of a failed job fails too, unless a test turns this off."""
    if context.arguments.get("breaks_after"):
        session.execute(text("SELECT 1 / 0"))
