"""`proctor rollouts`: a run's rollouts by filter and order, as a table, as JSON or as transcripts."""

from typing import Annotated, Any

import typer

from backend.cli.connection import connect
from backend.cli.names import run_of, short
from backend.cli.options import AsJson, Limit, RunName
from backend.cli.output import fail, say, write_json, write_table
from backend.cli.views import write_rollouts, write_transcript
from proctor import Client


def rollouts(
    run: RunName,
    where: Annotated[
        str | None, typer.Option(help="A filter: 'has flag and win = 0 and tokens > 200'. See --fields.")
    ] = None,
    view: Annotated[str | None, typer.Option(help="A saved view: its filter and its order.")] = None,
    sort: Annotated[
        str | None, typer.Option(help="seq, reward, turns, … or any field; a leading - sorts down.")
    ] = None,
    columns: Annotated[str | None, typer.Option(help="What to show, by comma: task,reward,win,flag,seconds.")] = None,
    count: Annotated[bool, typer.Option("--count", help="Only how many there are.")] = False,
    fields: Annotated[bool, typer.Option("--fields", help="What this run's filters and orders may say.")] = False,
    transcript: Annotated[bool, typer.Option("--transcript", help="The whole conversations.")] = False,
    status: Annotated[str | None, typer.Option(help="completed, failed or cancelled.")] = None,
    phase: Annotated[str | None, typer.Option(help="evaluation, train, heldout, warm_up, check or play.")] = None,
    step: Annotated[int | None, typer.Option(help="Training step.")] = None,
    level: Annotated[int | None, typer.Option(help="Difficulty.")] = None,
    min_reward: Annotated[float | None, typer.Option(help="At least this reward.")] = None,
    max_reward: Annotated[float | None, typer.Option(help="At most this reward.")] = None,
    text: Annotated[str | None, typer.Option(help="Somewhere in the conversation.")] = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """List a run's rollouts that pass a filter, in an order, or read their transcripts."""
    client = connect()
    wanted = {"run_id": run_of(client, run)["id"], "where": where, "sort": sort, "columns": columns}
    wanted |= {"status": status, "phase": phase, "step": step, "level": level, "text": text}
    wanted |= {"min_reward": min_reward, "max_reward": max_reward}
    if view:
        wanted = _with_view(client, view, wanted)
    if fields:
        _write_fields(client.get(f"/runs/{wanted['run_id']}/filter-words"), as_json=as_json)
    elif count:
        _write_count(client.get("/rollouts/count", **wanted), as_json=as_json)
    else:
        found = list(client.pages("/rollouts", limit=limit, **wanted))
        _write(client, found, columns, transcript=transcript, as_json=as_json)


def _with_view(client: Client, name: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """The view's filter beside what else is asked for, and its order unless another is given."""
    views = list(client.pages("/views"))
    found = next((view for view in views if name in {view["name"], view["id"]}), None)
    if found is None:
        fail(f"there is no view {name!r}; there are: {', '.join(view['name'] for view in views) or 'none'}")
    both = [part for part in (found["filter"], wanted["where"]) if part]
    where = " and ".join(f"({part})" for part in both) if len(both) > 1 else "".join(both)
    return wanted | {"where": where or None, "sort": wanted["sort"] or found["sort"] or None}


def _write(
    client: Client, found: list[dict[str, Any]], columns: str | None, *, transcript: bool, as_json: bool
) -> None:
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
        write_table(("rollout", *keys), rows, empty="No rollout fits.")
    else:
        write_rollouts(found)


def _write_count(found: dict[str, int], *, as_json: bool) -> None:
    if as_json:
        write_json(found)
    else:
        say(f"{found['matching']:,} of {found['total']:,} match")


def _write_fields(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        write_json(found)
        return
    rows = [
        (field["name"], " ".join(field["operators"]), field["help"], ", ".join(field["choices"]))
        for field in found["fields"]
    ]
    write_table(("field", "operators", "what it is", "values"), rows, empty="There is none.")
