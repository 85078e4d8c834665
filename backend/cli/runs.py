"""`proctor runs`, `run …`, `rollouts`, `compare`: what was played and how it went."""

from typing import Annotated

import typer

from backend.cli.connection import connect
from backend.cli.names import run_of, short
from backend.cli.options import AsJson, Limit, RunName
from backend.cli.output import say, write_json
from backend.cli.starting import finish
from backend.cli.tables import write_comparison, write_rollouts, write_run, write_runs, write_transcript

app = typer.Typer(help="Show, watch, stop and resume a run.", no_args_is_help=True, rich_markup_mode=None)


def runs(
    kind: Annotated[str | None, typer.Option(help="evaluation, training, check or play.")] = None,
    status: Annotated[str | None, typer.Option(help="queued, running, paused, stopped, completed or failed.")] = None,
    environment: Annotated[str | None, typer.Option(help="Name of the environment.")] = None,
    text: Annotated[str | None, typer.Option(help="Part of the run's name.")] = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """List runs, newest first."""
    wanted = {"kind": kind, "status": status, "environment": environment, "text": text}
    found = list(connect().all("/runs", limit=limit, **wanted))
    if as_json:
        write_json(found)
    else:
        write_runs(found)


@app.command("show")
def show(run: RunName, as_json: AsJson = False) -> None:
    """One run with its figures."""
    client = connect()
    found = run_of(client, run)
    if as_json:
        write_json(found)
    else:
        write_run(found, client.url)


@app.command("watch")
def watch_run(run: RunName, as_json: AsJson = False) -> None:
    """Watch a run until it is over; Ctrl-C leaves it running."""
    client = connect()
    finish(client, run_of(client, run), no_wait=False, as_json=as_json)


@app.command("stop")
def stop(run: RunName, as_json: AsJson = False) -> None:
    """Ask a run to stop after what is in flight. It can be resumed."""
    _ask(run, "stop", as_json)


@app.command("resume")
def resume(run: RunName, as_json: AsJson = False) -> None:
    """Go on with a stopped, paused or failed run."""
    _ask(run, "resume", as_json)


def rollouts(
    run: RunName,
    status: Annotated[str | None, typer.Option(help="completed, failed or cancelled.")] = None,
    phase: Annotated[str | None, typer.Option(help="evaluation, train, heldout, warm_up, check or play.")] = None,
    step: Annotated[int | None, typer.Option(help="Training step.")] = None,
    level: Annotated[int | None, typer.Option(help="Difficulty.")] = None,
    min_reward: Annotated[float | None, typer.Option(help="At least this reward.")] = None,
    max_reward: Annotated[float | None, typer.Option(help="At most this reward.")] = None,
    text: Annotated[str | None, typer.Option(help="Somewhere in the conversation.")] = None,
    sort: Annotated[str, typer.Option(help="seq, reward, turns, … or a column; a leading - sorts down.")] = "-seq",
    transcript: Annotated[bool, typer.Option("--transcript", help="The whole conversations.")] = False,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """List a run's rollouts, or read their transcripts."""
    client = connect()
    wanted = {"status": status, "phase": phase, "step": step, "level": level, "text": text, "sort": sort}
    bounds = {"min_reward": min_reward, "max_reward": max_reward}
    run_id = run_of(client, run)["id"]
    found = list(client.all("/rollouts", limit=limit, run_id=run_id, **wanted, **bounds))
    if transcript:
        found = [client.get(f"/rollouts/{rollout['id']}") for rollout in found]
    if as_json:
        write_json(found)
    elif transcript:
        for rollout in found:
            write_transcript(rollout)
    else:
        write_rollouts(found)


def compare(
    before: RunName,
    after: RunName,
    before_step: Annotated[int | None, typer.Option(help="Of a training run: which held-out examination.")] = None,
    after_step: Annotated[int | None, typer.Option(help="Of a training run: which held-out examination.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare two runs on the same tasks: paired differences with 95 % intervals, beside the baselines."""
    client = connect()
    sides = {"a": run_of(client, before)["id"], "b": run_of(client, after)["id"]}
    found = client.get("/compare", **sides, a_step=before_step, b_step=after_step)
    if as_json:
        write_json(found)
    else:
        write_comparison(found)


def _ask(name: str, what: str, as_json: bool) -> None:
    client = connect()
    found = client.post(f"/runs/{run_of(client, name)['id']}/{what}")
    if as_json:
        write_json(found)
    else:
        word = "is asked to stop" if what == "stop" and found["status"] == "running" else f"is {found['status']}"
        say(f"run {short(found['id'])} {word}")
