"""`proctor review …`: what detectors flagged, and verdicts on it."""

from typing import Annotated

import typer

from backend.cli.connection import connect
from backend.cli.names import run_of, short
from backend.cli.options import AsJson, Limit
from backend.cli.output import fail, say, write_json, write_table
from backend.client import Client

app = typer.Typer(help="Judge flagged rollouts. Alone: list what waits.", rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def review(
    context: typer.Context,
    shown: Annotated[str, typer.Option(help="unreviewed, reviewed or all.")] = "unreviewed",
    run: Annotated[str | None, typer.Option(help="Only of this run.")] = None,
    detector: Annotated[str | None, typer.Option(help="Only of this detector.")] = None,
    environment: Annotated[str | None, typer.Option(help="Only of this environment.")] = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """List flags that wait for a verdict, newest first."""
    if context.invoked_subcommand:
        return
    client = connect()
    wanted = {"shown": shown, "detector": detector, "environment": environment}
    run_id = run_of(client, run)["id"] if run else None
    found = list(client.all("/flags", limit=limit, run=run_id, **wanted))
    if as_json:
        write_json(found)
        return
    rows = [
        (
            short(flag["id"]),
            flag["severity"],
            flag["detector"],
            short(flag["run_id"]),
            flag["verdict"],
            flag["sentence"],
        )
        for flag in found
    ]
    write_table(("flag", "severity", "detector", "run", "verdict", "what was seen"), rows, empty="Nothing waits.")


@app.command("judge")
def judge(
    flag: Annotated[str, typer.Argument(metavar="FLAG", help="A flag's id or the end of it.")],
    verdict: Annotated[str, typer.Argument(metavar="VERDICT", help="honest, hack, broken_reward or unsure.")],
    comment: Annotated[str, typer.Option(help="Why.")] = "",
    as_json: AsJson = False,
) -> None:
    """Store a verdict on a flag."""
    client = connect()
    found = client.post(f"/flags/{_flag_id(client, flag)}/verdicts", {"verdict": verdict, "comment": comment})
    if as_json:
        write_json(found)
    else:
        say(f"{len(found['items'])} verdict(s) stored: {verdict}")


def _flag_id(client: Client, name: str) -> str:
    wanted = name.replace("-", "")
    for flag in client.all("/flags", shown="all", limit=500):
        if flag["id"].replace("-", "").endswith(wanted):
            return str(flag["id"])
    fail(f"there is no flag {name!r}; `proctor review --shown all` shows them")
