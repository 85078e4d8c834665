"""`proctor rollouts`: a run's rollouts by filter and order, as a table, as JSON or as transcripts."""

from typing import Annotated

import typer

from backend.cli.connection import connect
from backend.cli.derived import Json
from backend.cli.names import run_of, short
from backend.cli.options import AsJson, Limit, RunName
from backend.cli.output import fail, say, write_json, write_table
from backend.cli.views import write_rollouts, write_transcript
from proctor import Client


def rollouts(
    run: RunName,
    where: Annotated[
        str | None, typer.Option(help="Filter, such as 'has flag and win = 0 and tokens > 200'. See --fields.")
    ] = None,
    view: Annotated[str | None, typer.Option(help="Saved view: its filter and its order.")] = None,
    sort: Annotated[
        str | None, typer.Option(help="seq, reward, turns or any field; a leading - sorts in descending order.")
    ] = None,
    columns: Annotated[str | None, typer.Option(help="Columns, such as task,reward,win,flag,seconds.")] = None,
    count: Annotated[bool, typer.Option("--count", help="Print only the number of rollouts.")] = False,
    fields: Annotated[
        bool, typer.Option("--fields", help="List the fields of filters and orders of this run.")
    ] = False,
    transcript: Annotated[bool, typer.Option("--transcript", help="Print the whole conversations.")] = False,
    status: Annotated[str | None, typer.Option(help="completed, failed or `cancelled`.")] = None,
    phase: Annotated[str | None, typer.Option(help="evaluation, train, heldout, warm_up, check or play.")] = None,
    step: Annotated[int | None, typer.Option(help="Training step.")] = None,
    level: Annotated[int | None, typer.Option(help="Difficulty level.")] = None,
    min_reward: Annotated[float | None, typer.Option(help="Minimum reward.")] = None,
    max_reward: Annotated[float | None, typer.Option(help="Maximum reward.")] = None,
    text: Annotated[str | None, typer.Option(help="Text in the conversation.")] = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """List a run's rollouts that pass a filter, or print their transcripts."""
    client = connect()
    run_id = run_of(client, run)["id"]
    query: Json = {"run_id": run_id, "where": where, "sort": sort, "columns": columns, "status": status, "phase": phase}
    query |= {"step": step, "level": level, "text": text, "min_reward": min_reward, "max_reward": max_reward}
    if view:
        query |= _view_query(client, view, where, sort)
    if fields:
        words = client.get(f"/runs/{run_id}/filter-words")
        if as_json:
            return write_json(words)
        rows = [
            (each["name"], " ".join(each["operators"]), each["help"], ", ".join(each["choices"]))
            for each in words["fields"]
        ]
        return write_table(("field", "operators", "description", "values"), rows, empty="No fields.")
    if count:
        counts = client.get("/rollouts/count", **query)
        return write_json(counts) if as_json else say(f"{counts['matching']:,} of {counts['total']:,} match")
    found = list(client.pages("/rollouts", limit=limit, **query))
    if transcript:
        found = [client.get(f"/rollouts/{rollout['id']}") for rollout in found]
    if as_json:
        write_json(found)
    elif transcript:
        for rollout in found:
            write_transcript(rollout)
    elif columns and found:
        keys = list(found[0]["values"])
        rows = [(short(rollout["id"]), *(rollout["values"][key] for key in keys)) for rollout in found]
        write_table(("rollout", *keys), rows, empty="No rollout matches.")
    else:
        write_rollouts(found)


def _view_query(client: Client, name: str, where: str | None, sort: str | None) -> dict[str, str | None]:
    """The view's filter combined with `where`, and its order unless `sort` is given."""
    views = list(client.pages("/views"))
    if not (found := next((view for view in views if name in {view["name"], view["id"]}), None)):
        fail(f"there is no view {name!r}; choose from: {', '.join(view['name'] for view in views) or 'none'}")
    both = [part for part in (found["filter"], where) if part]
    combined = " and ".join(f"({part})" for part in both) if len(both) > 1 else "".join(both)
    return {"where": combined or None, "sort": sort or found["sort"] or None}
