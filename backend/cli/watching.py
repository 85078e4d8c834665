"""Waiting for a run with a progress bar: what is being done, the rate, the time left."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
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
from rich.progress import TaskID as Bar

from backend.cli.names import short
from backend.cli.output import BAD_RESULT, OK, console
from backend.client import Client

POLL_SECONDS = 0.5
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


def watch(client: Client, run: dict[str, Any], *, quiet: bool = False) -> dict[str, Any]:
    """The run once it is over. Ctrl-C leaves it running and says how to come back."""
    with progress_bars(quiet=quiet) as progress:
        bar = progress.add_task(str(run["name"]), total=None, rate="")
        try:
            return follow(client, run["id"], progress, bar)
        except KeyboardInterrupt:
            progress.stop()
            name = short(run["id"])
            message = f"The run goes on. `proctor run watch {name}` shows it again, `proctor run stop {name}` stops it."
            console(is_error=True).print(message, markup=False)
            raise SystemExit(OK) from None


def follow(client: Client, run_id: str, progress: Progress, bar: Bar) -> dict[str, Any]:
    """Move the bar until the run is over."""
    name = str(progress.tasks[progress.task_ids.index(bar)].description)
    reward, looked_at = "", float("-inf")
    while True:
        run: dict[str, Any] = client.get(f"/runs/{run_id}")
        if run["progress"].get("done") and time.monotonic() - looked_at > FIGURES_SECONDS:
            reward, looked_at = mean_reward(client, run_id), time.monotonic()
        show(progress, bar, name, run, reward)
        if run["status"] in OVER:
            return run
        time.sleep(POLL_SECONDS)


def mean_reward(client: Client, run_id: str) -> str:
    """As of now, for the progress bar."""
    mean = client.get(f"/runs/{run_id}/figures")["columns"][0]["mean"]
    return "" if mean is None else f"reward {mean:.3f}"


def show(progress: Progress, bar: Bar, name: str, run: dict[str, Any], reward: str = "") -> None:
    state = run["progress"]
    total = state.get("total") or None
    what = state.get("message") or state.get("phase") or run["status"]
    rate = f"{state['rate']:.3g}/s" if state.get("rate") else ""
    told = " ".join(part for part in (rate, reward) if part)
    progress.update(bar, description=f"{name}: {what}", total=total, completed=state.get("done", 0), rate=told)


def status_of(run: dict[str, Any]) -> int:
    """How a command that waited for the run ends."""
    failed = run["summary"].get("failed") or 0
    return OK if run["status"] == "completed" and not failed else BAD_RESULT
