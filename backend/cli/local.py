"""`proctor up`, `demo` and `migrate-data`: commands that run on this machine's data folder."""

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table

from backend.cli.connection import left_token
from backend.cli.output import BAD_RESULT, AsJson, console, fail, say, write_json
from backend.cli.views import estimate
from backend.cli.watching import progress_columns
from backend.core.embedded import CannotStart
from backend.settings import get_settings
from backend.showcase import Story
from backend.supervisor.children import ChildGaveUp
from backend.supervisor.data_folder import running_at
from backend.supervisor.fleet import Address
from backend.supervisor.up import Report, Supervisor, up
from proctor import Client, ProctorError

BEGAN_AT = time.monotonic()

terminal = lru_cache(maxsize=1)(console)
"""One console for events and progress bars, which would disturb each other on two."""

Data = Annotated[Path | None, typer.Option("--data", help="Folder for the database, logs and artifacts.")]
Host = Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all networks.")]
Port = Annotated[int, typer.Option(help="Port to listen on; 0 selects a free one.", min=0, max=65535)]


def up_command(
    data: Data = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as a line of JSON.")] = False,
) -> None:
    """Start Proctor on this machine and serve until Ctrl-C."""
    _serve(data, Address(host, port), partial(_print_event, as_json=as_json))


def demo_command(
    story: Annotated[
        Story,
        typer.Argument(
            help="tictactoe: check a reward, train, evaluate and export. hacked-reward: train on a reward with a hole, "
            "review the hack, repair the reward, regrade the history, and train again. instruct: train an adapter of "
            "an instruct model, export it and serve the exports; needs optional packages."
        ),
    ] = Story.TICTACTOE,
    data: Data = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Training preset. `quick` shows all stages of tictactoe in a minute; "
            "`instruct-135m-quick` those of instruct."
        ),
    ] = None,
) -> None:
    """Start Proctor, run a showcase on it and keep serving until Ctrl-C. A repeated call resumes the showcase."""
    folder = data or get_settings().data
    if url := running_at(folder):
        say(f"Proctor is already running at {url}. The showcase runs there.\n")
        if not run_showcase(Client(url, left_token(folder)), story, preset):
            raise typer.Exit(BAD_RESULT)
        return
    should_stop = threading.Event()
    threads: list[threading.Thread] = []  # the supervisor needs the main thread

    def begin(supervisor: Supervisor) -> None:
        client = Client(supervisor.fleet.address.url, left_token(supervisor.folder.path))
        show = partial(run_showcase, client, story, preset, should_stop.is_set, keeps_serving=True)
        threads.append(threading.Thread(target=show, name="showcase", daemon=True))
        threads[0].start()

    def report(event: str, details: dict[str, object]) -> None:
        if event == "stopping":
            should_stop.set()
            for thread in threads:
                thread.join(timeout=5)
        _print_event(event, details)

    _serve(data, Address(host, port), report, on_all_ready=begin)


def _serve(
    data: Path | None, address: Address, report: Report, on_all_ready: Callable[[Supervisor], None] | None = None
) -> None:
    settings = get_settings()
    try:
        up(settings, data or settings.data, address, report, began_at=BEGAN_AT, on_all_ready=on_all_ready)
    except (CannotStart, ChildGaveUp) as error:
        fail(str(error))


def _print_event(event: str, details: dict[str, object], *, as_json: bool = False) -> None:
    if as_json:
        sys.stdout.write(json.dumps({"event": event, **details}) + "\n")
        sys.stdout.flush()
        return
    match event:
        case "ready":
            terminal().print(f"[dim]{details['seconds']:6.2f} s[/]  {details['name']} ready")
        case "address":
            terminal().print(f"\nProctor is running at [bold]{details['url']}[/]. Press Ctrl-C to stop it.\n")
        case "sign_in":
            terminal().print(f"Sign in with this one-time link and set a password:\n[bold]{details['url']}[/]\n")
        case "news":
            terminal().print(details["message"], style="yellow", markup=False)
        case "stopping":
            terminal().print("stopping …")
        case "stopped":
            terminal().print("stopped")


def run_showcase(
    client: Client,
    story: Story,
    preset: str | None,
    should_stop: Callable[[], bool] = lambda: False,
    *,
    keeps_serving: bool = False,
) -> bool:
    """Run a showcase against a server. Returns whether it completed."""
    from backend.showcase.hacked_reward import HackedReward
    from backend.showcase.instruct import Instruct
    from backend.showcase.steps import ProgressDisplay, ShowcaseFailed, ShowcaseStopped
    from backend.showcase.tictactoe import TicTacToe

    shown = terminal()
    columns = (SpinnerColumn(), TextColumn("  {task.description}"), *progress_columns())
    bars = Progress(*columns, console=shown, transient=True)
    kinds: dict[Story, type[TicTacToe | HackedReward | Instruct]] = {
        Story.TICTACTOE: TicTacToe,
        Story.HACKED_REWARD: HackedReward,
        Story.INSTRUCT: Instruct,
    }
    try:
        with bars:
            outcome = kinds[story](client, ProgressDisplay(bars), should_stop, preset).run()
    except ShowcaseStopped:
        return False
    except (ShowcaseFailed, ProctorError) as error:
        say(f"The showcase stopped: {error}", "red")
        say(f"`proctor demo {story}` resumes it.")
        return False
    table = Table(title=f"{outcome.title}, mean and 95% interval", box=None, pad_edge=False)
    table.add_column("policy")
    table.add_column(outcome.figure, justify="right")
    for name, figure in outcome.figures.items():
        table.add_row(name, estimate(figure))
    shown.print()
    shown.print(table)
    for name, difference in outcome.comparisons.items():
        say(f"{name}, paired by task: {estimate(difference)}")
    for title, link in outcome.links.items():
        say(f"{title}: {link}")
    shown.print()
    if keeps_serving:
        shown.print(f"Proctor keeps serving at [bold]{client.url}[/]. Press Ctrl-C to stop it.")
    return True


def migrate_data_command(
    data: Annotated[
        Path | None, typer.Option("--data", help="Data folder to convert. Default: the folder `proctor up` uses.")
    ] = None,
    has_backup: Annotated[
        bool, typer.Option("--has-backup", help="Confirm that the database of DATABASE_URL has been backed up.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Convert the data of Proctor 0.1 for this version. Stop Proctor first.

    The embedded database is copied before it is converted. For a database of DATABASE_URL, make a backup and confirm
    it with --has-backup.
    """
    from backend.supervisor.migrate_data import CannotMigrate, migrate_data

    settings = get_settings()
    report = partial(say, style="dim", is_error=True)
    try:
        migrated = migrate_data(settings, data or settings.data, has_backup=has_backup, report=report)
    except CannotMigrate as error:
        fail(str(error))
    if as_json:
        write_json(asdict(migrated) if migrated else {"revision_before": None, "rows": {}, "backup": None})
    elif migrated is None:
        say("The database already has this version's schema. Nothing to convert.")
    else:
        rows = ", ".join(f"{count:,} {table.replace('_', ' ')}" for table, count in migrated.rows.items())
        say(f"Converted: {rows}.")
        if migrated.backup:
            say(f"Backup: {migrated.backup}. Delete it when you no longer want to go back.")
