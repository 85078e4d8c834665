"""What `proctor run onset` and `proctor run effort` have in common: the one that is meant, and watching it."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import typer

from backend.cli.names import short
from backend.cli.output import BAD_RESULT, OK, fail, write_json
from backend.cli.watching import OVER, POLL_SECONDS, work_bar
from proctor import Client

Found = dict[str, Any]


def steer(client: Client, path: str, studies: Iterable[Found], noun: str, *, is_stop: bool) -> Found:
    """Stop the newest one under way, or go on with the newest that stopped or failed."""
    for each in studies:
        if each["status"] != "completed" and (each["status"] not in OVER) == is_stop:
            steered: Found = client.post(f"{path}/{each['id']}/{'stop' if is_stop else 'resume'}")
            return steered
    fail(f"no {noun} is under way" if is_stop else f"there is no {noun} to go on with")


def watch_study(
    client: Client, path: str, study: Found, name: str, shown: Callable[[Found], Found], *, quiet: bool
) -> Found:
    """Once it is over. `shown`: what the bar shows of its progress. Ctrl-C leaves it at work."""
    command = f"`proctor run {path.rsplit('/', 1)[-1]} {short(study['run_id'])}`"
    with work_bar(name, f"It goes on. {command} shows it, with --stop it stops.", quiet=quiet) as move:
        while study["status"] not in OVER:
            move(**shown(study["progress"]))
            time.sleep(POLL_SECONDS)
            study = client.get(f"{path}/{study['id']}")
    return study


def end_with(study: Found, write: Callable[[Found], None], *, is_good: bool, as_json: bool) -> None:
    """Tell it, and end with 1 where it is not good."""
    if as_json:
        write_json(study)
    else:
        write(study)
    raise typer.Exit(OK if is_good else BAD_RESULT)
