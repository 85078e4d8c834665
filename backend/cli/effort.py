"""`proctor run effort`: how much of its reasoning a checkpoint needs for its reward."""

from typing import Annotated, Any

import typer

from backend.cli.connection import connect
from backend.cli.names import run_of
from backend.cli.options import AsJson, NoWait, RunName
from backend.cli.output import fail, say, write_json, write_table
from backend.cli.studies import end_with, steer, watch_study
from proctor import Client


def register(run: typer.Typer) -> None:
    run.command("effort")(effort)


def effort(
    run: RunName,
    start: Annotated[bool, typer.Option("--start", help="Make a score; left out: show what is known.")] = False,
    step: Annotated[
        int | None, typer.Option(min=0, help="Of a training run: the checkpoint of this step; left out: the newest.")
    ] = None,
    tasks: Annotated[
        int | None, typer.Option(min=1, help="Of a training run: held-out tasks that each side plays.")
    ] = None,
    group_size: Annotated[int | None, typer.Option(min=1, help="Of a training run: rollouts a task.")] = None,
    cuts: Annotated[int, typer.Option(min=2, max=11, help="Fractions from 0 to 1 at which the reasoning ends.")] = 11,
    samples: Annotated[int, typer.Option(min=1, max=32, help="Answers at each of them.")] = 4,
    replies: Annotated[int, typer.Option(min=1, max=512, help="Replies of each side that are cut, at most.")] = 32,
    measure: Annotated[str, typer.Option(help="What an answer is worth: success or reward.")] = "success",
    stop: Annotated[bool, typer.Option("--stop", help="Stop the score under way.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the score that was stopped or failed.")] = False,
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Cut the reasoning of replies that succeeded, force the answer, grade it, and compare with the policy it began as.

    RUN is a training run or an evaluation of a local checkpoint. Ends with 1 when the score is suspicious, and when it
    stopped or failed.
    """
    client = connect()
    path = f"/runs/{run_of(client, run)['id']}/effort"
    if stop or resume:
        score = steer(client, path, client.get(path)["scores"], "effort score", is_stop=stop)
        _show(client, path, score, no_wait or stop, as_json)
    elif start:
        body = {
            "checkpoint_id": None if step is None else _checkpoint(client.get(path), step),
            "tasks": tasks,
            "group_size": group_size,
            "cuts": cuts,
            "samples": samples,
            "replies": replies,
            "measure": measure,
        }
        _show(client, path, client.post(path, body), no_wait, as_json)
    elif as_json:
        write_json(client.get(path))
    else:
        _write(client.get(path))


def _checkpoint(found: dict[str, Any], step: int) -> str:
    for each in found["checkpoints"]:
        if each["name"] == f"step {step}":
            return str(each["id"])
    offered = ", ".join(each["name"] for each in found["checkpoints"]) or "none"
    fail(f"no checkpoint of step {step} can be scored; offered: {offered}")


def _show(client: Client, path: str, score: dict[str, Any], no_wait: bool, as_json: bool) -> None:
    if not no_wait:
        score = watch_study(client, path, score, "effort score", _shown, quiet=as_json)
    is_good = score["status"] == "completed" and score["outcome"] != "suspicious"
    end_with(score, _write_score, is_good=no_wait or is_good, as_json=as_json)


def _shown(state: dict[str, Any]) -> dict[str, Any]:
    return {"description": state["doing"], "total": state["total"] or None, "completed": state["done"]}


def _write(found: dict[str, Any]) -> None:
    if found["obstacle"]:
        say(found["obstacle"], "yellow")
    elif not found["scores"]:
        say("Nothing was scored yet: --start scores the newest checkpoint.")
    for score in found["scores"]:
        _write_score(score)
        say("")


def _write_score(score: dict[str, Any]) -> None:
    name = next(side["name"] for side in score["sides"] if not side["is_base"])
    say(f"{name}: {score['outcome'] or 'no answer yet'} ({score['status']})", "bold")
    if score["reason"]:
        say(score["reason"], "yellow")
    if score["sentence"]:
        say(score["sentence"], "yellow" if score["outcome"] == "suspicious" else "")
    rows = [
        (
            f"{side['name']} (base)" if side["is_base"] else side["name"],
            side["succeeded"],
            side["reasoned"],
            len(side["replies"]),
            "" if side["score"] is None else f"{side['score']:.3f} [{side['low']:.3f}, {side['high']:.3f}]",
            " ".join(f"{value:.2f}" for value in side["curve"]) or side["note"],
        )
        for side in score["sides"]
    ]
    head = ("policy", "succeeded", "with reasoning", "cut", "area [95 %]", "curve from 0 to 100 % of the reasoning")
    write_table(head, rows, empty="nothing was played yet")
