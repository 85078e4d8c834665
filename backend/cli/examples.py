"""`proctor data examples`: conversations that an SFT warm-up learns from."""

from pathlib import Path
from typing import Annotated

import typer

from backend.cli.connection import connect
from backend.cli.derived import Json, renders
from backend.cli.names import version_of
from backend.cli.options import AsJson, EnvironmentName
from backend.cli.output import BAD_RESULT, OK, say, write_fields, write_json
from backend.cli.starting import nested

PATH = "/training/examples"

app = typer.Typer(
    help="Upload conversations for an SFT warm-up, and preview what a run would learn from.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("add")
def add(
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help="JSONL file with one conversation per line.")
    ],
    name: Annotated[str | None, typer.Option(help="Default: the name of the file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Upload conversations: {"messages": […]} or {"prompt": …, "completion": …}, as TRL and OpenAI write them.

    If a line is invalid, the error names it, nothing is stored, and the command exits with 2.
    """
    client = connect()
    row = client.upload(PATH, {"file": file}, {"name": name})
    if as_json:
        write_json(row)
        return
    _write(row)
    say(f"{client.url}{PATH}/{row['id']}")
    say(f"To train on it: proctor train ENVIRONMENT --set sft.source=file --set sft.file={row['id']}")


@app.command("preview")
def preview(
    environment: EnvironmentName,
    preset: Annotated[str | None, typer.Option(help="Start from this preset.")] = None,
    choices: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A setting of the run, such as sft.source=rollouts. Repeatable."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Preview what a training run would learn from. Exits with 1 if a source has no examples."""
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


def _write(row: Json) -> None:
    write_fields({"name": row["name"], "id": row["id"], **_figures(row["statistics"])})


@renders("examples.get")
def _write_detail(row: Json) -> None:
    _write(row)
    for example in row["examples"]:
        _write_conversation(example["messages"])


@renders("examples.restore")
def _write_restored(row: Json) -> None:
    say(f"{row['name']} is restored")


def _figures(statistics: Json) -> dict[str, object]:
    reward = statistics["reward"]
    return {
        "conversations": f"{statistics['conversations']:,}",
        "replies": f"{statistics['replies']:,}",
        "learned": f"{statistics['understood']:.1%}" if statistics["understood"] is not None else None,
        "tokens": f"{statistics['tokens']:,}",
        "longest": f"{statistics['longest']:,}",
        "reward": f"{reward['mean']:.3f} ({reward['low']:.3f} to {reward['high']:.3f})" if reward else None,
        "tasks by level": statistics["tasks_by_level"] or None,
        "duplicates": f"{statistics['repeats']:,}, {statistics['near_repeats']:,} near duplicates",
        "system prompts": len(statistics["systems"]),
    }


def _write_source(source: Json, found: Json) -> None:
    kind = "episodes to play" if source["source"] == "script" else "conversations"
    say(f"{source['source']}: {source['share']:.0%} of the examples, {source['available']:,} {kind}", "bold")
    if source["looked_at"]:
        write_fields({**_figures(source["statistics"]), "token count": found["tokens_are"]})
    for warning in source["warnings"]:
        say(f"! {warning}", "yellow")
    for example in source["examples"][:1]:
        _write_conversation(example["messages"])


def _write_conversation(messages: list[Json]) -> None:
    for message in messages:
        say(f"[{message['role']}]", "dim")
        say(str(message["content"])[:2000])
