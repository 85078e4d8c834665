"""Wait for runs and jobs with a progress bar: current state, rate and remaining time."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from backend.cli.output import OK, console
from backend.web.formats import short
from proctor import Client, Json

POLL_SECONDS = 0.5
FIGURES_SECONDS = 2.0
"""Pause between requests of the mean reward, which the server has to compute."""
OVER = {"completed", "failed", "stopped", "paused"}


def progress_columns() -> tuple[ProgressColumn, ...]:
    """Return what follows the description: bar, count, rate and times."""
    counts = (BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    return (*counts, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())


def progress_bars(*, quiet: bool = False) -> Progress:
    """Return bars on standard error, which keeps standard output for results."""
    columns = (SpinnerColumn(finished_text="[green]✓"), TextColumn("{task.description}"), *progress_columns())
    return Progress(*columns, console=console(is_error=True), disable=quiet)


@contextmanager
def work_bar(name: str, advice: str, *, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """Show a bar and yield what updates it. Ctrl-C prints `advice` and exits; the work continues on the server."""
    with progress_bars(quiet=quiet) as progress:
        bar = progress.add_task(name, total=None, rate="")
        try:
            yield partial(progress.update, bar)
        except KeyboardInterrupt:
            progress.stop()
            console(is_error=True).print(advice, markup=False)
            raise SystemExit(OK) from None


def wait_for(client: Client, path: str, job: dict[str, Json], *, quiet: bool = False) -> dict[str, Json]:
    """Return the state of a job once it has finished. Ctrl-C leaves it running."""
    with work_bar(job["message"], "It continues on the server.", quiet=quiet) as update:
        while not job["is_finished"]:
            time.sleep(POLL_SECONDS)
            job = client.get(path)
            update(total=job["total"], completed=job["done"], description=job["message"])
    return job


def watch(client: Client, run: dict[str, Json], *, quiet: bool = False) -> dict[str, Json]:
    """Return a run once it has ended. Ctrl-C leaves it running."""
    name = short(run["id"])
    advice = f"The run continues. `proctor run watch {name}` shows it again, `proctor run stop {name}` stops it."
    reward, read_at = "", float("-inf")
    with work_bar(str(run["name"]), advice, quiet=quiet) as update:
        while True:
            run = client.get(f"/runs/{run['id']}")
            progress = run["progress"]
            if progress.get("done") and time.monotonic() - read_at > FIGURES_SECONDS:
                mean, read_at = client.get(f"/runs/{run['id']}/figures")["columns"][0]["mean"], time.monotonic()
                reward = "" if mean is None else f"reward {mean:.3f}"
            rate = f"{progress['rate']:.3g}/s" if progress.get("rate") else ""
            state = progress.get("message") or progress.get("phase") or run["status"]
            update(
                description=f"{run['name']}: {state}",
                total=progress.get("total") or None,
                completed=progress.get("done", 0),
                rate=" ".join(filter(None, (rate, reward))),
            )
            if run["status"] in OVER:
                return run
            time.sleep(POLL_SECONDS)
