"""`proctor data lessons`: conversations that a warm-up imitates."""

from pathlib import Path
from typing import Annotated, Any

import typer

from backend.cli.connection import connect
from backend.cli.names import short, version_of
from backend.cli.options import AsJson, EnvironmentName
from backend.cli.output import BAD_RESULT, OK, fail, say, write_fields, write_json, write_table
from backend.cli.starting import nested
from proctor import Client

PATH = "/training/lessons"
FileName = Annotated[str, typer.Argument(metavar="FILE", help="Its id, the end of it, or its name.")]

app = typer.Typer(
    help="Uploaded conversations that an SFT warm-up imitates, and a look at what a run would learn from.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("add")
def add(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="JSONL, a conversation a line.")],
    name: Annotated[str | None, typer.Option(help="Left out: the file's own.")] = None,
    as_json: AsJson = False,
) -> None:
    """Upload conversations: {"messages": […]} or {"prompt": …, "completion": …}, as TRL and OpenAI write them.

    Each line is checked; anything wrong is named with its line, nothing is stored, and the command ends with 2.
    """
    client = connect()
    row = client.upload(PATH, {"file": file}, {"name": name})
    if as_json:
        write_json(row)
        return
    _write(row)
    say(f"{client.url}{PATH}/{row['id']}")
    say(f"train on it: proctor train ENVIRONMENT --set sft.source=file --set sft.file={row['id']}")


@app.command("list")
def list_files(as_json: AsJson = False) -> None:
    """What was uploaded, newest first."""
    rows = list(connect().pages(PATH))
    if as_json:
        write_json(rows)
        return
    table = [
        (
            *(short(row["id"]), row["name"], f"{row['conversations']:,}", f"{row['statistics']['tokens']:,}"),
            str(row["created_at"])[:16].replace("T", " "),
        )
        for row in rows
    ]
    columns = ("file", "name", "conversations", "tokens (about)", "uploaded (UTC)")
    write_table(columns, table, empty="Nothing was uploaded yet: `proctor data lessons add FILE`.")


@app.command("show")
def show(file: FileName, as_json: AsJson = False) -> None:
    """Its numbers and first conversations."""
    client = connect()
    row = client.get(f"{PATH}/{_find(client, file)['id']}")
    if as_json:
        write_json(row)
        return
    _write(row)
    for example in row["examples"]:
        _write_conversation(example["messages"])


@app.command("delete")
def delete(file: FileName, as_json: AsJson = False) -> None:
    """Offer it no longer. For a week `proctor data lessons restore` takes it back."""
    client = connect()
    row = _find(client, file)
    client.delete(f"{PATH}/{row['id']}")
    if as_json:
        write_json({"deleted": row["id"]})
    else:
        say(f"{row['name']} is deleted; take it back with: proctor data lessons restore {row['id']}")


@app.command("restore")
def restore(
    file: Annotated[str, typer.Argument(metavar="ID", help="The whole id of a deleted file.")], as_json: AsJson = False
) -> None:
    """Take a deleted file back."""
    row = connect().post(f"{PATH}/{file}/restore", {})
    if as_json:
        write_json(row)
    else:
        say(f"{row['name']} is back")


@app.command("preview")
def preview(
    environment: EnvironmentName,
    preset: Annotated[str | None, typer.Option(help="A tried configuration.")] = None,
    choices: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A choice of the run, e.g. sft.source=rollouts; repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What a training run with these choices would imitate: how much, how long, how good. Ends with 1 for nothing."""
    client = connect()
    body = {
        "version_id": version_of(client, environment)["id"],
        "preset": preset,
        "configuration": nested(choices or []),
    }
    found = client.post(f"{PATH}/preview", {name: value for name, value in body.items() if value is not None})
    if as_json:
        write_json(found)
    else:
        for source in found["sources"]:
            _write_source(source, found)
    raise typer.Exit(OK if all(source["available"] for source in found["sources"]) else BAD_RESULT)


def _find(client: Client, name: str) -> dict[str, Any]:
    for row in client.pages(PATH):
        if name in {row["id"], row["name"]} or row["id"].replace("-", "").endswith(name.replace("-", "")):
            found: dict[str, Any] = row
            return found
    fail(f"there is no file of conversations {name!r}; `proctor data lessons list` shows them")


def _write(row: dict[str, Any]) -> None:
    told = row["statistics"]
    write_fields({"name": row["name"], "id": row["id"], **_figures(told)})


def _figures(told: dict[str, Any]) -> dict[str, object]:
    reward = told["reward"]
    return {
        "conversations": f"{told['conversations']:,}",
        "replies": f"{told['replies']:,}",
        "imitated": f"{told['understood']:.1%}" if told["understood"] is not None else None,
        "tokens": f"{told['tokens']:,}",
        "longest": f"{told['longest']:,}",
        "reward": f"{reward['mean']:.3f} ({reward['low']:.3f} to {reward['high']:.3f})" if reward else None,
        "tasks by level": told["tasks_by_level"] or None,
        "repeats": f"{told['repeats']:,}, {told['near_repeats']:,} more nearly alike",
        "system prompts": len(told["systems"]),
    }


def _write_source(source: dict[str, Any], found: dict[str, Any]) -> None:
    kind = "episodes to be played" if source["source"] == "script" else "conversations"
    say(f"{source['source']}: {source['share']:.0%} of the lessons, {source['available']:,} {kind}", "bold")
    if source["looked_at"]:
        write_fields({**_figures(source["statistics"]), "tokens are": found["tokens_are"]})
    for warning in source["warnings"]:
        say(f"! {warning}", "yellow")
    for example in source["examples"][:1]:
        _write_conversation(example["messages"])


def _write_conversation(messages: list[dict[str, Any]]) -> None:
    for message in messages:
        say(f"[{message['role']}]", "dim")
        say(str(message["content"])[:2000])
