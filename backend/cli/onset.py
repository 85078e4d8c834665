"""`proctor run onset`: when a confirmed pattern of a training run began, and the way back to before it."""

from typing import Annotated, Any

import typer

from backend.cli.connection import connect
from backend.cli.names import run_of
from backend.cli.options import AsJson, NoWait, RunName
from backend.cli.output import BAD_RESULT, fail, say, write_json, write_table
from backend.cli.starting import finish
from backend.cli.studies import end_with, steer, watch_study
from proctor import Client


def register(run: typer.Typer) -> None:
    run.command("onset")(onset)


def onset(
    run: RunName,
    detector: Annotated[
        str | None, typer.Option(help="Search for the onset of what it flags; left out: show what is known.")
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="Only this cluster of it.")] = None,
    tasks: Annotated[int | None, typer.Option(min=8, help="Held-out tasks that each checkpoint plays.")] = None,
    group_size: Annotated[int | None, typer.Option(min=1, help="Rollouts a task.")] = None,
    stop: Annotated[bool, typer.Option("--stop", help="Stop the search under way.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the search that was stopped or failed.")] = False,
    roll_back: Annotated[
        bool, typer.Option("--roll-back", help="Start a branch from the last honest checkpoint.")
    ] = False,
    version: Annotated[
        int | None, typer.Option(min=1, help="Of a roll back: the environment's version; left out: the newest.")
    ] = None,
    without_certificate: Annotated[
        str | None, typer.Option("--without-certificate", help="Of a roll back: why to train on an unchecked version.")
    ] = None,
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """The first checkpoint that shows a confirmed pattern more often than the starting policy, by bisection.

    Ends with 1 when a search stopped or failed before it knew.
    """
    client = connect()
    path = f"/runs/{run_of(client, run)['id']}/onset"
    if roll_back:
        _roll_back(client, path, version, without_certificate, no_wait=no_wait, as_json=as_json)
    elif stop or resume:
        search = steer(client, path, _meant(client.get(path), detector, cluster), "search", is_stop=stop)
        _show_search(client, path, search, no_wait or stop, as_json)
    elif detector:
        body = {"detector": detector, "cluster": cluster, "tasks": tasks, "group_size": group_size}
        _show_search(client, path, client.post(path, body), no_wait, as_json)
    elif as_json:
        write_json(client.get(path))
    else:
        _write(client.get(path))


def _meant(found: dict[str, Any], detector: str | None, cluster: str | None) -> list[dict[str, Any]]:
    return [
        each
        for each in found["searches"]
        if detector in (None, each["detector"]) and cluster in (None, each["cluster"])
    ]


def _roll_back(
    client: Client, path: str, version: int | None, reason: str | None, *, no_wait: bool, as_json: bool
) -> None:
    back = client.get(path)["last_honest"]
    if back is None:
        fail("nothing was confirmed in this run, or no checkpoint before it has its weights", BAD_RESULT)
    body = {
        "checkpoint_id": back["checkpoint_id"],
        "version": version or back["newest_version"],
        "without_certificate": reason,
    }
    started = client.post(f"/runs/{back['run_id']}/branch", body)
    finish(client, client.get(f"/runs/{started['id']}"), no_wait=no_wait, as_json=as_json)


def _show_search(client: Client, path: str, search: dict[str, Any], no_wait: bool, as_json: bool) -> None:
    title = str(search["title"])

    def shown(state: dict[str, Any]) -> dict[str, Any]:
        what = f"{title}: {state['done']} of {state['total']} rollouts" if state["total"] else title
        return {"description": what, "total": state["at_most"], "completed": state["sampled"]}

    if not no_wait:
        search = watch_study(client, path, search, title, shown, quiet=as_json)
    end_with(search, _write_search, is_good=no_wait or search["status"] == "completed", as_json=as_json)


def _write(found: dict[str, Any]) -> None:
    rows = [
        (each["detector"], each["cluster"], each["flagged"], each["confirmed"], each["first_step"], each["obstacle"])
        for each in found["patterns"]
    ]
    head = ("detector", "cluster", "flagged", "confirmed", "first at step", "")
    write_table(head, rows, empty="No pattern is confirmed: judge what was flagged, `proctor review`.")
    for search in found["searches"]:
        say("")
        _write_search(search)
    if back := found["last_honest"]:
        where = "before reinforcement" if back["stage"] != "grpo" else f"step {back['step']}"
        say(f"\nlast honest checkpoint: {where}; --roll-back starts a branch from it on v{back['newest_version']}")


def _write_search(search: dict[str, Any]) -> None:
    say(f"{search['title']}: {search['found']} ({search['status']})", "bold")
    if search["reason"]:
        say(search["reason"], "yellow")
    rows = [
        (
            "starting policy" if each["is_base"] else f"step {each['step']}",
            f"{each['flagged']} of {each['rollouts']}",
            f"{each['share']:.1%} [{each['low']:.1%}, {each['high']:.1%}]",
            each["chance"],
            "" if each["is_base"] else each["is_above"],
        )
        for each in search["samples"]
        if each["rollouts"]
    ]
    head = ("checkpoint", "shows it", "share [95 %]", "p", "above the base rate")
    write_table(head, rows, empty="nothing was sampled yet")
    for remark in search["remarks"]:
        say(remark, "yellow")
