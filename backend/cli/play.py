"""Playing an episode in the terminal, one reply a line; or watching a policy play it."""

import time
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.prompt import Prompt

from backend.cli.output import BAD_RESULT, console, fail
from proctor import Client

POLL_SECONDS = 0.15
_BROKEN = {"failed", "stuck"}


@dataclass(frozen=True, slots=True)
class Table:
    """Where an episode is played."""

    client: Client
    environment: str
    task: dict[str, int | None]
    """Chosen parts of the task; None is random."""

    @property
    def chosen(self) -> dict[str, int]:
        return {key: value for key, value in self.task.items() if value is not None}


def play_episode(table: Table, version: int, *, policy: str = "", turns: int | None = None) -> None:
    """Until the episode is done or left by Ctrl-C or Ctrl-D. `policy` plays first: `turns` of it, or to the end."""
    shown, client = console(), table.client
    view = client.post(f"/environments/{table.environment}/play", {"version": version, **table.chosen})
    address = f"/environments/{table.environment}/play/{view['run_id']}"
    where = f"task {view['index']}, level {view['level']}"
    shown.print(f"[dim]{table.environment} v{view['version']}, {where}. Ctrl-D leaves.[/]")
    told = 0
    try:
        view = _when_answered(client, address, view)
        if policy and view["phase"] == "yours":
            told = _show_turns(shown, view, told)
            asked = {"policy": policy, "moves": turns, "revision": view["revision"]}
            view = _when_answered(client, address, client.post(f"{address}/policy", asked), shown, told)
        while _is_open(shown, view):
            reply = Prompt.ask("[bold]you[/]", console=shown)
            view = client.post(f"{address}/reply", {"reply": reply, "revision": view["revision"]})
            view = _when_answered(client, address, view)
    except (EOFError, KeyboardInterrupt):
        client.post(f"{address}/leave")
        shown.print("left without a reward")


def _is_open(shown: Console, view: dict[str, Any]) -> bool:
    """Show the episode; end the command with 1 if it broke."""
    _show(shown, view)
    if view["phase"] in _BROKEN:
        fail(view["message"] or "the environment failed", BAD_RESULT)
    if view["status"] != "playing":
        shown.print(f"[bold]{view['stop_reason']}[/]: reward {view['reward']}")
    return bool(view["status"] == "playing")


def _when_answered(
    client: Client, address: str, view: dict[str, Any], shown: Console | None = None, told: int = 0
) -> dict[str, Any]:
    """Wait until a reply is expected and return the view. With `shown`, print turns as they are played."""
    while True:
        if shown is not None:
            told = _show_turns(shown, view, told)
        if view["status"] != "playing" or view["phase"] in {"yours", *_BROKEN}:
            return view
        time.sleep(POLL_SECONDS)
        view = client.get(address)


def _show_turns(shown: Console, view: dict[str, Any], told: int) -> int:
    """Print the turns after the first `told`; return the number printed so far."""
    for number, step in enumerate(view["steps"][told:], start=told + 1):
        author = (view["authors"] + [""] * number)[number - 1] or "you"
        shown.print(f"{number} {author}: {step['reply']}", markup=False, style="bold")
        shown.print(step["text"] or "the episode is over", markup=False)
    return max(told, len(view["steps"]))


def _show(shown: Console, view: dict[str, Any]) -> None:
    shown.print()
    shown.print(view["text"], markup=False)
    if view["choices"]:
        shown.print("may answer: " + "  ".join(view["choices"][:40]), style="dim", markup=False)
    columns = "  ".join(f"{name} {value:g}" for name, value in view["columns"].items())
    shown.print(f"turn {view['turns']} of {view['max_turns']}   {columns}", style="dim", markup=False)
