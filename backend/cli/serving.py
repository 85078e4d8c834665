"""`proctor up`: how the start, the news and the end are told."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from backend.cli.connection import left_token
from backend.cli.output import BAD_RESULT, console, fail
from backend.settings import get_settings
from backend.showcase import Story
from backend.supervisor.children import ChildGaveUp
from backend.supervisor.data_folder import CannotStart, running_at
from backend.supervisor.fleet import Address
from backend.supervisor.up import Supervisor, up
from proctor import Client

BEGAN_AT = time.monotonic()

Data = Annotated[Path | None, typer.Option("--data", help="Folder for the database, logs and artifacts.")]
Host = Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all networks.")]
Port = Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)]
AsJson = Annotated[bool, typer.Option("--json", help="Tell each event as a line of JSON.")]


def up_command(data: Data = None, host: Host = "127.0.0.1", port: Port = 8000, as_json: AsJson = False) -> None:
    """Start Proctor on this machine and serve until Ctrl-C."""
    serve(data, Address(host, port), json_teller if as_json else Teller())


def demo_command(
    story: Annotated[
        Story,
        typer.Argument(
            help="tictactoe: from a sound reward to a proven export. hacked-reward: "
            "a reward is hacked, the run paused, judged, the reward repaired, history scored again, and trained on."
        ),
    ] = Story.TICTACTOE,
    data: Data = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    preset: Annotated[
        str | None, typer.Option(help="Another training preset; `quick` shows all stages of tictactoe in a minute.")
    ] = None,
) -> None:
    """Start Proctor, run a showcase on it and keep serving until Ctrl-C. Again: goes on where the data stands."""
    from backend.cli.demo import ShowcaseThread, run_showcase

    folder = data or get_settings().data
    teller = Teller()
    if url := running_at(folder):
        teller.console.print(f"Proctor runs already at [bold]{url}[/]; the showcase runs there.\n")
        if not run_showcase(Client(url, left_token(folder)), teller.console, story, preset):
            raise typer.Exit(BAD_RESULT)
        return
    showcase = ShowcaseThread(teller.console, story, preset)

    def begin(supervisor: Supervisor) -> None:
        showcase.start(Client(supervisor.fleet.address.url, left_token(supervisor.folder.path)))

    def tell(event: str, details: dict[str, Any]) -> None:
        if event == "stopping":
            showcase.stop()
        teller(event, details)

    serve(data, Address(host, port), tell, on_all_ready=begin)


def serve(
    data: Path | None,
    address: Address,
    tell: Callable[[str, dict[str, Any]], None],
    on_all_ready: Callable[[Supervisor], None] | None = None,
) -> None:
    settings = get_settings()
    try:
        up(settings, data or settings.data, address, tell, began_at=BEGAN_AT, on_all_ready=on_all_ready)
    except (CannotStart, ChildGaveUp) as error:
        fail(str(error))


class Teller:
    """Tells a person at a terminal."""

    def __init__(self) -> None:
        self.console = console()

    def __call__(self, event: str, details: dict[str, Any]) -> None:
        match event:
            case "ready":
                self.console.print(f"[dim]{details['seconds']:6.2f} s[/]  {details['name']} ready")
            case "address":
                self.console.print(f"\nProctor is at [bold]{details['url']}[/]  (Ctrl-C ends it)\n")
            case "sign_in":
                self.console.print(f"Sign in once by this link and set a password:\n[bold]{details['url']}[/]\n")
            case "news":
                self.console.print(details["message"], style="yellow", markup=False)
            case "stopping":
                self.console.print("stopping …")
            case "stopped":
                self.console.print("stopped")


def json_teller(event: str, details: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"event": event, **details}) + "\n")
    sys.stdout.flush()
