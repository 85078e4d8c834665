"""`proctor env try`: a draft in the terminal, as the editor's panel has it. A folder is pushed as the draft first."""

import time
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.prompt import Prompt

from backend.cli import pushing
from backend.cli.output import BAD_RESULT, OK, console, fail, write_json
from backend.cli.play import POLL_SECONDS, Table
from backend.domain.environments.packages import MANIFEST_PATH
from proctor import Client


def draft_of(client: Client, target: str, *, force: bool) -> str:
    """The environment whose draft is meant; a folder is sent before."""
    if not (Path(target) / MANIFEST_PATH).is_file():
        return target
    draft = pushing.push_draft(client, Path(target), force=force)
    if problems := draft["validation"]["problems"]:
        first = problems[0]
        fail(f"{first['path']}:{first['line']}: {first['key']} {first['message']}", BAD_RESULT)
    return str(draft["environment"])


def try_episode(table: Table, *, script: str, replies: list[str], as_json: bool) -> None:
    """Reset, then play a script to the end, send the given replies, or prompt for replies until the end."""
    client, address = table.client, f"/environments/{table.environment}/try"
    trial = _when_answered(client, address, client.post(address, table.chosen))
    for asked, body in [
        *(("act", {"reply": text}) for text in replies),
        *([("script", {"script": script})] if script else []),
    ]:
        if _is_open(trial):
            trial = _when_answered(client, address, client.post(f"{address}/{asked}", body))
    if as_json:
        write_json(trial)
    else:
        trial = _talk(table, trial, is_asking=not script and not replies)
    raise typer.Exit(BAD_RESULT if trial["answer"].get("error") else OK)


def _talk(table: Table, trial: dict[str, Any], *, is_asking: bool) -> dict[str, Any]:
    shown, client, address = console(), table.client, f"/environments/{table.environment}/try"
    task = trial["task"]
    shown.print(f"[dim]draft of {table.environment}, {task['split']} task {task['index']}, level {task['level']}[/]")
    told = 0
    while True:
        told = _show(shown, trial, told)
        if not is_asking or not _is_open(trial):
            return trial
        try:
            reply = Prompt.ask("[bold]you[/]", console=shown)
        except (EOFError, KeyboardInterrupt):
            return trial
        trial = _when_answered(client, address, client.post(f"{address}/act", {"reply": reply}))


def _is_open(trial: dict[str, Any]) -> bool:
    """Whether the draft answered and the episode continues."""
    return not trial["answer"].get("error") and trial["answer"].get("status") != "completed"


def _when_answered(client: Client, address: str, trial: dict[str, Any]) -> dict[str, Any]:
    while trial["is_waiting"]:
        time.sleep(POLL_SECONDS)
        trial = client.get(address)
    return trial


def _show(shown: Console, trial: dict[str, Any], told: int) -> int:
    """Print the messages after the first `told`, the columns and any error; return the number of messages so far."""
    answer = trial["answer"]
    messages = answer.get("messages", [])
    for message in messages[told:]:
        shown.print(f"{message['role']}:", style="bold")
        shown.print(message["content"], markup=False)
    columns = "  ".join(f"{name} {value:g}" for name, value, _ in answer.get("columns", []))
    shown.print(f"{len(answer.get('steps', []))} turns   {columns}", style="dim", markup=False)
    if answer.get("error"):
        shown.print(answer["error"], style="red", markup=False)
    elif answer.get("status") == "completed":
        shown.print(f"[bold]{answer['stop_reason']}[/]: reward {answer['reward']:g}")
    return len(messages)
