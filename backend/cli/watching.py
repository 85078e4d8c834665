"""Waiting for what others do, with a progress bar: what is being done, the rate, the time left."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from backend.cli.names import short
from backend.cli.output import BAD_RESULT, OK, console
from proctor import Client

POLL_SECONDS = 0.5
"""Between looks at what is waited for."""
FIGURES_SECONDS = 2.0
"""Between looks at the mean reward, which the server has to fold."""
OVER = {"completed", "failed", "stopped", "paused"}


@contextmanager
def progress_bars(*, quiet: bool = False) -> Iterator[Progress]:
    """On standard error, so that standard output stays for results."""
    columns = (
        SpinnerColumn(finished_text="[green]✓"),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console(is_error=True), disable=quiet) as progress:
        yield progress


@contextmanager
def work_bar(name: str, told: str, *, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """What moves a bar of this name, as `Progress.update`. Ctrl-C leaves the work going on; `told` says how to come
    back to it."""
    with progress_bars(quiet=quiet) as progress:
        bar = progress.add_task(name, total=None, rate="")
        try:
            yield partial(progress.update, bar)
        except KeyboardInterrupt:
            progress.stop()
            console(is_error=True).print(told, markup=False)
            raise SystemExit(OK) from None


def look_while(
    is_waiting: Callable[[dict[str, Any]], bool], found: dict[str, Any], look: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """What is found once it waits no more."""
    while is_waiting(found):
        time.sleep(POLL_SECONDS)
        found = look()
    return found


def wait_for(client: Client, path: str, job: dict[str, Any], *, quiet: bool = False) -> dict[str, Any]:
    """The state of a job once it has finished. Ctrl-C leaves it running."""
    with work_bar(job["message"], "It continues on the server.", quiet=quiet) as update:
        while not job["is_finished"]:
            time.sleep(POLL_SECONDS)
            job = client.get(path)
            update(total=job["total"], completed=job["done"], description=job["message"])
    return job


def watch(client: Client, run: dict[str, Any], *, quiet: bool = False) -> dict[str, Any]:
    """The run once it is over. Ctrl-C leaves it running and says how to come back."""
    name = short(run["id"])
    told = f"The run goes on. `proctor run watch {name}` shows it again, `proctor run stop {name}` stops it."
    reward, looked_at = "", float("-inf")
    with work_bar(str(run["name"]), told, quiet=quiet) as move:
        while True:
            run = client.get(f"/runs/{run['id']}")
            if run["progress"].get("done") and time.monotonic() - looked_at > FIGURES_SECONDS:
                reward, looked_at = _mean_reward(client, run["id"]), time.monotonic()
            move(**_shown(run, reward))
            if run["status"] in OVER:
                return run
            time.sleep(POLL_SECONDS)


def _mean_reward(client: Client, run_id: str) -> str:
    """As of now, for the progress bar."""
    mean = client.get(f"/runs/{run_id}/figures")["columns"][0]["mean"]
    return "" if mean is None else f"reward {mean:.3f}"


def _shown(run: dict[str, Any], reward: str) -> dict[str, Any]:
    state = run["progress"]
    what = state.get("message") or state.get("phase") or run["status"]
    rate = f"{state['rate']:.3g}/s" if state.get("rate") else ""
    told = " ".join(part for part in (rate, reward) if part)
    total = state.get("total") or None
    return {"description": f"{run['name']}: {what}", "total": total, "completed": state.get("done", 0), "rate": told}


def status_of(run: dict[str, Any]) -> int:
    """How a command that waited for the run ends."""
    failed = run["summary"].get("failed") or 0
    return OK if run["status"] == "completed" and not failed else BAD_RESULT
