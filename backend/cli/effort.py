"""`proctor run effort`: how much of its reasoning a checkpoint needs for its reward."""

import time
from typing import Annotated, Any

import typer

from backend.cli.connection import connect
from backend.cli.names import run_of, short
from backend.cli.options import AsJson, NoWait, RunName
from backend.cli.output import BAD_RESULT, OK, console, fail, say, write_json, write_table
from backend.cli.watching import OVER, POLL_SECONDS, progress_bars
from backend.client import Client


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
        score = _chosen(client.get(path), is_open=stop)
        _show(client, client.post(f"{path}/{score['id']}/{'stop' if stop else 'resume'}"), no_wait or stop, as_json)
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
        _show(client, client.post(path, body), no_wait, as_json)
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


def _chosen(found: dict[str, Any], *, is_open: bool) -> dict[str, Any]:
    """The newest score that is meant."""
    for score in found["scores"]:
        is_over = score["status"] in OVER
        if is_over != is_open and score["status"] != "completed":
            chosen: dict[str, Any] = score
            return chosen
    fail("no effort score is under way" if is_open else "there is no effort score to go on with")


def _show(client: Client, score: dict[str, Any], no_wait: bool, as_json: bool) -> None:
    if not no_wait:
        score = _watch(client, score, quiet=as_json)
    if as_json:
        write_json(score)
    else:
        _write_score(score)
    is_good = score["status"] == "completed" and score["outcome"] != "suspicious"
    raise typer.Exit(OK if no_wait or is_good else BAD_RESULT)


def _watch(client: Client, score: dict[str, Any], *, quiet: bool) -> dict[str, Any]:
    """The score once it is over. Ctrl-C leaves it at work."""
    with progress_bars(quiet=quiet) as progress:
        bar = progress.add_task("effort score", total=None, rate="")
        try:
            while score["status"] not in OVER:
                state = score["progress"]
                total = state["total"] or None
                progress.update(bar, description=state["doing"], total=total, completed=state["done"])
                time.sleep(POLL_SECONDS)
                score = client.get(f"/runs/{score['run_id']}/effort/{score['id']}")
        except KeyboardInterrupt:
            progress.stop()
            told = f"It goes on. `proctor run effort {short(score['run_id'])}` shows it, with --stop it stops."
            console(is_error=True).print(told, markup=False)
            raise SystemExit(OK) from None
    return score


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
