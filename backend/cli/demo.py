"""`proctor demo`: the showcase with a progress display, beside the serving or against a Proctor that runs already."""

import threading
from collections.abc import Callable

from rich.console import Console
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
from rich.table import Table

from backend.cli.figures import estimate
from backend.showcase import Story
from backend.showcase.hacked_reward import HackedReward
from backend.showcase.steps import Outcome, Report, ShowcaseFailed, Steps, Stopped
from backend.showcase.tictactoe import TicTacToe
from proctor import Client, ProctorError


class Display:
    """One bar for what is being done now; a line stays for each step that is done."""

    def __init__(self, console: Console) -> None:
        self.console = console
        columns = (
            SpinnerColumn(),
            TextColumn("  {task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self.bars = Progress(*columns, console=console, transient=True)
        self._bar: Bar | None = None
        self._what = ""

    def step(self, title: str) -> None:
        self._end_bar()
        self.console.print(f"[green]▸[/] {title}")

    def say(self, text: str) -> None:
        self._end_bar()
        self.console.print(f"  {text}", style="dim", markup=False)

    def progress(self, what: str, done: int, total: int | None, rate: float | None) -> None:
        if what != self._what:
            self._end_bar()
            self._what, self._bar = what, self.bars.add_task(what, total=total, rate="")
        if self._bar is not None:
            shown = f"{rate:.3g}/s" if rate else ""
            self.bars.update(self._bar, completed=done, total=total, rate=shown)

    def _end_bar(self) -> None:
        if self._bar is not None:
            self.bars.remove_task(self._bar)
        self._bar, self._what = None, ""


class ShowcaseThread:
    """Runs the showcase beside the supervisor, whose thread must stay the main one."""

    def __init__(self, console: Console, story: Story, preset: str | None) -> None:
        self.console, self.story, self.preset = console, story, preset
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, client: Client) -> None:
        self._thread = threading.Thread(target=self._run, args=(client,), name="showcase", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join(timeout=5)

    def _run(self, client: Client) -> None:
        if run_showcase(client, self.console, self.story, self.preset, self._stop.is_set):
            self.console.print(f"Proctor goes on serving at [bold]{client.url}[/]; Ctrl-C ends it.")


def run_showcase(
    client: Client, console: Console, story: Story, preset: str | None, should_stop: Callable[[], bool] = lambda: False
) -> bool:
    """True when it came to its end."""
    display = Display(console)
    try:
        with display.bars:
            outcome = _showcase(story, client, display, should_stop, preset).run()
    except Stopped:
        return False
    except (ShowcaseFailed, ProctorError) as error:
        console.print(f"The showcase stopped: {error}", style="red", markup=False)
        console.print(f"`proctor demo {story}` goes on where it stopped.", markup=False)
        return False
    write_outcome(console, outcome)
    return True


def _showcase(
    story: Story, client: Client, report: Report, should_stop: Callable[[], bool], preset: str | None
) -> Steps:
    match story:
        case Story.TICTACTOE:
            return TicTacToe(client, report, should_stop, preset)
        case Story.HACKED_REWARD:
            return HackedReward(client, report, should_stop, preset)


def write_outcome(console: Console, outcome: Outcome) -> None:
    table = Table(title=f"{outcome.title}, mean and 95 % interval", box=None, pad_edge=False)
    table.add_column("policy")
    table.add_column(outcome.figure, justify="right")
    for name, figure in outcome.figures.items():
        table.add_row(name, estimate(figure))
    console.print()
    console.print(table)
    for name, difference in outcome.comparisons.items():
        console.print(f"{name}, paired by task: {estimate(difference)}", markup=False)
    for title, link in outcome.links.items():
        console.print(f"{title}: {link}", markup=False)
    console.print()
