"""Playing an episode in the terminal, one reply a line."""

import time
from typing import Any

from rich.console import Console
from rich.prompt import Prompt

from backend.cli.output import BAD_RESULT, console, fail
from backend.client import Client

POLL_SECONDS = 0.15
_BROKEN = {"failed", "stuck"}


def play_episode(client: Client, version: dict[str, Any], task: dict[str, int | None]) -> None:
    """Until the episode is done or left by Ctrl-C or Ctrl-D."""
    shown = console()
    name = version["environment"]
    chosen = {key: value for key, value in task.items() if value is not None}
    view = client.post(f"/environments/{name}/play", {"version": version["number"], **chosen})
    address = f"/environments/{name}/play/{view['run_id']}"
    shown.print(f"[dim]{name} v{view['version']}, task {view['index']}, level {view['level']}. Ctrl-D leaves.[/]")
    while True:
        view = _when_answered(client, address, view)
        _show(shown, view)
        if view["phase"] in _BROKEN:
            fail(view["message"] or "the environment failed", BAD_RESULT)
        if view["status"] != "playing":
            shown.print(f"[bold]{view['stop_reason']}[/]: reward {view['reward']}")
            return
        try:
            reply = Prompt.ask("[bold]you[/]", console=shown)
        except (EOFError, KeyboardInterrupt):
            client.post(f"{address}/leave")
            shown.print("left without a reward")
            return
        view = client.post(f"{address}/reply", {"reply": reply, "revision": view["revision"]})


def _when_answered(client: Client, address: str, view: dict[str, Any]) -> dict[str, Any]:
    while view["status"] == "playing" and view["phase"] not in {"yours", *_BROKEN}:
        time.sleep(POLL_SECONDS)
        view = client.get(address)
    return view


def _show(shown: Console, view: dict[str, Any]) -> None:
    shown.print()
    shown.print(view["text"], markup=False)
    if view["choices"]:
        shown.print("may answer: " + "  ".join(view["choices"][:40]), style="dim", markup=False)
    columns = "  ".join(f"{name} {value:g}" for name, value in view["columns"].items())
    shown.print(f"turn {view['turns']} of {view['max_turns']}   {columns}", style="dim", markup=False)
