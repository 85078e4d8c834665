"""`proctor run alarms|answer|set|pause|branch`: steer a training run while it goes on."""

from typing import Annotated, Any

import typer

from backend.cli.connection import connect
from backend.cli.names import run_of, short
from backend.cli.options import AsJson, NoWait, RunName
from backend.cli.output import BAD_RESULT, fail, say, write_fields, write_json, write_table
from backend.cli.starting import finish
from backend.domain.training.steering import when_used
from proctor import Client

Pairs = Annotated[
    list[str] | None, typer.Argument(metavar="NAME=VALUE", help="E.g. grpo.learning_rate=2e-4; repeatable.")
]
Version = Annotated[
    int | None,
    typer.Option("--version", min=1, help="Another version of the environment to go on with, such as a repaired one."),
]
Reason = Annotated[str | None, typer.Option("--without-certificate", help="Why to train on an unchecked version.")]


def alarms(run: RunName, as_json: AsJson = False) -> None:
    """What looked unhealthy in a training run, newest first. Ends with 1 while an alarm is open."""
    client = connect()
    found = client.get(f"/runs/{run_of(client, run)['id']}/alarms")
    if as_json:
        write_json(found)
    else:
        _write_alarms(found["items"])
    if any(alarm["is_open"] for alarm in found["items"]):
        raise typer.Exit(BAD_RESULT)


def answer(
    run: RunName,
    alarm: Annotated[str, typer.Argument(metavar="ALARM", help="Its name (the newest open one) or id.")],
    what: Annotated[
        str, typer.Argument(metavar="ANSWER", help="One that `run alarms` offers: lower_rate, pause, stop, …")
    ],
    version: Version = None,
    without_certificate: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Do something about an alarm, and remember that it was answered."""
    client = connect()
    run_id = run_of(client, run)["id"]
    body = {"answer": what, "version": version, "without_certificate": without_certificate}
    answered = client.post(f"/runs/{run_id}/alarms/{_alarm_of(client, run_id, alarm)}", body)
    if as_json:
        write_json(answered)
        return
    say(f"{answered['alarm']['title']}: {what.replace('_', ' ')}")
    if answered["branch_run_id"]:
        say(f"run {short(answered['branch_run_id'])} goes on: {client.url}/runs/{answered['branch_run_id']}")


def set_(
    run: RunName,
    pairs: Pairs = None,
    undo: Annotated[str | None, typer.Option(help="Take a change back, by its id or the end of it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Change settings of a training run from its next step on. Without any: those that may be changed, and what was.

    How it saves memory (grpo.micro_batches, hardware.gradient_checkpointing) changes when it is resumed. An empty
    value takes a limit away: `budget.minutes=`.
    """
    client = connect()
    found = run_of(client, run)
    path, is_over = f"/runs/{found['id']}/settings", found["status"] not in ("queued", "running")
    if pairs:
        _show(client.post(path, {"changes": _changes(pairs)}), as_json, is_over=is_over)
    elif undo:
        _show(client.post(f"{path}/{_change_of(client, path, undo)}/undo"), as_json, is_over=is_over)
    elif as_json:
        write_json(client.get(path))
    else:
        _write_settings(client.get(path))


def pause(run: RunName, as_json: AsJson = False) -> None:
    """Let a training run save its state and rest; `run resume` goes on from there."""
    client = connect()
    found = client.post(f"/runs/{run_of(client, run)['id']}/pause")
    if as_json:
        write_json(found)
    else:
        word = "is asked to pause" if found["status"] == "running" else f"is {found['status']}"
        say(f"run {short(found['id'])} {word}")


def branch(
    run: RunName,
    step: Annotated[
        int | None, typer.Option(min=0, help="The GRPO step of the checkpoint; 0: the weights before GRPO.")
    ] = None,
    checkpoint: Annotated[str | None, typer.Option(help="In place of the step: the checkpoint's id.")] = None,
    choices: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Another setting; repeatable.")
    ] = None,
    version: Version = None,
    without_certificate: Reason = None,
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Start a run that goes on from a checkpoint of a training run with the steps that remain."""
    client = connect()
    body: dict[str, Any] = {"step": step, "checkpoint_id": checkpoint, "changes": _changes(choices or [])}
    body |= {"version": version, "without_certificate": without_certificate}
    started = client.post(f"/runs/{run_of(client, run)['id']}/branch", body)
    finish(client, client.get(f"/runs/{started['id']}"), no_wait=no_wait, as_json=as_json)


def register(app: typer.Typer) -> None:
    """As commands of `proctor run`."""
    app.command("alarms")(alarms)
    app.command("answer")(answer)
    app.command("set")(set_)
    app.command("pause")(pause)
    app.command("branch")(branch)


def _write_alarms(items: list[dict[str, Any]]) -> None:
    rows = [
        (short(item["id"]), item["title"], item["step"], item["sentence"], item["action"], _state(item))
        for item in items
    ]
    write_table(("alarm", "", "step", "what was seen", "the run itself", "state"), rows, empty="no alarm so far")
    for item in items:
        if item["is_open"]:
            say(f"\n{item['title']}. Usually: {item['cause']} What helps: {item['advice']}")
            say("answers: " + ", ".join(f"{each['answer']} ({each['label']})" for each in item["answers"]))


def _state(item: dict[str, Any]) -> str:
    return "open" if item["is_open"] else item["answer"] or "over"


def _alarm_of(client: Client, run_id: str, name: str) -> str:
    items = client.get(f"/runs/{run_id}/alarms")["items"]
    for item in items:
        if item["id"].endswith(name) or (item["name"] == name and item["answer"] is None):
            return str(item["id"])
    fail(f"there is no unanswered alarm {name!r} of this run; `proctor run alarms` shows them")


def _change_of(client: Client, path: str, name: str) -> str:
    for change in client.get(path)["changes"]:
        if change["id"].endswith(name):
            return str(change["id"])
    fail(f"there is no change {name!r} of this run; `proctor run set RUN` shows them")


def _changes(pairs: list[str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            fail(f"{pair}: write it as name=value, e.g. grpo.learning_rate=2e-4")
        found[name] = value or None
    return found


def _show(changes: list[dict[str, Any]], as_json: bool, *, is_over: bool) -> None:
    if as_json:
        write_json(changes)
    elif not changes:
        say("nothing to change: it is so already")
    for change in () if as_json else changes:
        say(f"{change['name']}: {change['before']} → {change['after']} {when_used(change['name'], is_over=is_over)}")


def _write_settings(found: dict[str, Any]) -> None:
    write_fields(found["settings"])
    say("")
    rows = [
        (
            short(each["id"]),
            each["name"],
            each["before"],
            each["after"],
            "waits" if each["step"] is None else each["step"],
        )
        for each in found["changes"]
    ]
    write_table(("change", "setting", "before", "after", "from step"), rows, empty="nothing was changed")
