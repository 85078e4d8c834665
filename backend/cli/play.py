"""Play an episode in the terminal: on a version (`proctor env play`), or on a draft (`proctor env try`)."""

import time
from typing import NoReturn

import typer
from rich.console import Console
from rich.prompt import Prompt

from backend.cli.output import BAD_RESULT, OK, console, fail, write_json
from backend.domain.text import JsonObject
from proctor import Client, Json

POLL_SECONDS = 0.15
_BROKEN = {"failed", "stuck"}


def play_episode(client: Client, version: Json, task: Json, *, policy: str, turns: int | None) -> None:
    """Play until the episode ends or Ctrl-C or Ctrl-D. `policy` plays first: `turns` of it, or to the end."""
    output, name = console(), version["environment"]
    view = client.post(f"/environments/{name}/play", {"version": version["number"], **task})
    address = f"/environments/{name}/play/{view['run_id']}"
    output.print(f"[dim]{name} v{view['version']}, task {view['index']}, level {view['level']}. Ctrl-D leaves.[/]")
    try:
        view = _wait_for_turn(client, address, view)
        if view["opponent"]:
            output.print(f"You take the seat {view['seat']} against {view['opponent']}.", style="dim", markup=False)
        if policy and view["phase"] == "yours":
            printed = _print_turns(output, view, 0)
            request = {"policy": policy, "moves": turns, "revision": view["revision"]}
            view = _wait_for_turn(client, address, client.post(f"{address}/policy", request), output, printed)
        while _print_prompt(output, view):
            reply = Prompt.ask("[bold]you[/]", console=output)
            view = client.post(f"{address}/reply", {"reply": reply, "revision": view["revision"]})
            view = _wait_for_turn(client, address, view)
    except (EOFError, KeyboardInterrupt):
        client.post(f"{address}/leave")
        output.print("left without a reward")


def _wait_for_turn(
    client: Client, address: str, view: JsonObject, output: Console | None = None, printed: int = 0
) -> JsonObject:
    """Wait until a reply is expected and return the view. With `output`, print turns as they are played."""
    while True:
        if output is not None:
            printed = _print_turns(output, view, printed)
        if view["status"] != "playing" or view["phase"] in {"yours", *_BROKEN}:
            return view
        time.sleep(POLL_SECONDS)
        view = client.get(address)


def _print_turns(output: Console, view: JsonObject, printed: int) -> int:
    """Print the turns after the first `printed`; return the number printed so far."""
    for number, step in enumerate(view["steps"][printed:], start=printed + 1):
        author = (view["authors"] + [""] * number)[number - 1] or "you"
        output.print(f"{number} {author}: {step['reply']}", markup=False, style="bold")
        output.print(step["text"] or "the episode is over", markup=False)
    return max(printed, len(view["steps"]))


def _print_prompt(output: Console, view: JsonObject) -> bool:
    """Print the episode's state; return whether it expects a reply. Ends the command with 1 if it broke."""
    output.print()
    output.print(view["text"], markup=False)
    if view["choices"]:
        output.print("legal replies: " + "  ".join(view["choices"][:40]), style="dim", markup=False)
    columns = "  ".join(f"{name} {value:g}" for name, value in view["columns"].items())
    output.print(f"turn {view['turns']} of {view['max_turns']}   {columns}", style="dim", markup=False)
    if view["phase"] in _BROKEN:
        fail(view["message"] or "the environment failed", BAD_RESULT)
    if view["status"] != "playing":
        result = {1.0: ", won", 0.5: ", drawn", 0.0: ", lost"}.get(view["score"], "")
        output.print(f"[bold]{view['stop_reason']}[/]{result}: reward {view['reward']}")
    return bool(view["status"] == "playing")


def try_episode(
    client: Client, environment: str, task: Json, *, script: str, replies: list[str], as_json: bool
) -> NoReturn:
    """Reset the draft, then let a script play, send the given replies, or prompt for some. Ends the command."""
    address = f"/environments/{environment}/try"

    def request(path: str, body: object) -> JsonObject:
        trial: JsonObject = client.post(f"{address}{path}", body)
        while trial["is_waiting"]:
            time.sleep(POLL_SECONDS)
            trial = client.get(address)
        return trial

    trial = request("", task)
    actions: list[tuple[str, object]] = [("/act", {"reply": text}) for text in replies]
    for path, body in [*actions, *([("/script", {"script": script})] if script else [])]:
        if _is_open(trial):
            trial = request(path, body)
    if as_json:
        write_json(trial)
    else:
        output, played = console(), trial["task"]
        output.print(
            f"[dim]draft of {environment}, {played['split']} task {played['index']}, level {played['level']}[/]"
        )
        printed = _print_trial(output, trial, 0)
        while _is_open(trial) and not script and not replies:
            try:
                reply = Prompt.ask("[bold]you[/]", console=output)
            except (EOFError, KeyboardInterrupt):
                break
            trial = request("/act", {"reply": reply})
            printed = _print_trial(output, trial, printed)
    raise typer.Exit(BAD_RESULT if trial["answer"].get("error") else OK)


def _is_open(trial: JsonObject) -> bool:
    """Return whether the draft answered and the episode continues."""
    return not trial["answer"].get("error") and trial["answer"].get("status") != "completed"


def _print_trial(output: Console, trial: JsonObject, printed: int) -> int:
    """Print the messages after the first `printed`, the columns and any error; return the number of messages."""
    answer = trial["answer"]
    messages = answer.get("messages", [])
    for message in messages[printed:]:
        output.print(f"{message['role']}:", style="bold")
        output.print(message["content"], markup=False)
    columns = "  ".join(f"{name} {value:g}" for name, value, _ in answer.get("columns", []))
    output.print(f"{len(answer.get('steps', []))} turns   {columns}", style="dim", markup=False)
    if answer.get("error"):
        output.print(answer["error"], style="red", markup=False)
    elif answer.get("status") == "completed":
        output.print(f"[bold]{answer['stop_reason']}[/]: reward {answer['reward']:g}")
    return len(messages)
