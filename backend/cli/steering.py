"""`proctor run alarms|answer|set|branch`: steer a training run."""

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
    list[str] | None, typer.Argument(metavar="NAME=VALUE", help="Such as grpo.learning_rate=2e-4. Repeatable.")
]
Version = Annotated[
    int | None,
    typer.Option(
        "--version", min=1, help="Continue on another version of the environment, such as one with a fixed reward."
    ),
]
Reason = Annotated[
    str | None, typer.Option("--without-certificate", help="Why to train on a version that has not passed its checks.")
]


def alarms(run: RunName, as_json: AsJson = False) -> None:
    """List the alarms of a training run, newest first. Exits with 1 while an alarm is open."""
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
    alarm: Annotated[
        str, typer.Argument(metavar="ALARM", help="Id of the alarm, or its name for the newest unanswered one.")
    ],
    what: Annotated[
        str,
        typer.Argument(metavar="ANSWER", help="An answer listed by `run alarms`, such as lower_rate, pause or stop."),
    ],
    version: Version = None,
    without_certificate: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Answer an alarm of a training run."""
    client = connect()
    run_id = run_of(client, run)["id"]
    body = {"answer": what, "version": version, "without_certificate": without_certificate}
    answered = client.post(f"/runs/{run_id}/alarms/{_alarm_of(client, run_id, alarm)}", body)
    if as_json:
        write_json(answered)
        return
    say(f"{answered['alarm']['title']}: {what.replace('_', ' ')}")
    if answered["branch_run_id"]:
        say(f"run {short(answered['branch_run_id'])} continues: {client.url}/runs/{answered['branch_run_id']}")


def set_(
    run: RunName,
    pairs: Pairs = None,
    undo: Annotated[str | None, typer.Option(help="Undo a change, by its id or the end of it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Change settings of a training run from its next step on. Without settings, list those that can be changed.

    Memory settings (grpo.micro_batches, hardware.gradient_checkpointing) change when the run is resumed. An empty value
    removes a limit: `budget.minutes=`.
    """
    client = connect()
    found = run_of(client, run)
    path, is_over = f"/runs/{found['id']}/settings", found["status"] not in ("queued", "running")
    if pairs:
        _show(client.post(path, {"changes": _changes(pairs)})["items"], as_json, is_over=is_over)
    elif undo:
        _show(client.post(f"{path}/{_change_of(client, path, undo)}/undo")["items"], as_json, is_over=is_over)
    elif as_json:
        write_json(client.get(path))
    else:
        _write_settings(client.get(path))


def branch(
    run: RunName,
    step: Annotated[
        int | None, typer.Option(min=0, help="GRPO step of the checkpoint. 0: the weights before GRPO.")
    ] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Instead of the step: the id of the checkpoint.")] = None,
    choices: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Change a setting. Repeatable.")
    ] = None,
    version: Version = None,
    without_certificate: Reason = None,
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Start a run that continues from a checkpoint of a training run with the remaining steps."""
    client = connect()
    body: dict[str, Any] = {"step": step, "checkpoint_id": checkpoint, "changes": _changes(choices or [])}
    body |= {"version": version, "without_certificate": without_certificate}
    started = client.post(f"/runs/{run_of(client, run)['id']}/branch", body)
    finish(client, client.get(f"/runs/{started['id']}"), no_wait=no_wait, as_json=as_json)


def register(app: typer.Typer) -> None:
    """Add the commands to `proctor run`."""
    app.command("alarms")(alarms)
    app.command("answer")(answer)
    app.command("set")(set_)
    app.command("branch")(branch)


def _write_alarms(items: list[dict[str, Any]]) -> None:
    rows = [
        (short(item["id"]), item["title"], item["step"], item["sentence"], item["action"], _state(item))
        for item in items
    ]
    write_table(("alarm", "", "step", "observation", "action", "state"), rows, empty="No alarms.")
    for item in items:
        if item["is_open"]:
            say(f"\n{item['title']}. Likely cause: {item['cause']} Advice: {item['advice']}")
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
            fail(f"{pair}: write name=value, such as grpo.learning_rate=2e-4")
        found[name] = value or None
    return found


def _show(changes: list[dict[str, Any]], as_json: bool, *, is_over: bool) -> None:
    if as_json:
        write_json(changes)
    elif not changes:
        say("No change: the run already has these values.")
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
            "pending" if each["step"] is None else each["step"],
        )
        for each in found["changes"]
    ]
    write_table(("change", "setting", "before", "after", "from step"), rows, empty="No changes yet.")
