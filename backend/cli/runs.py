"""`proctor runs`, `run …`, `rollouts`: what was played and how it went."""

from typing import Annotated

import typer

from backend.cli.connection import connect
from backend.cli.names import policy_of, run_of, short
from backend.cli.options import AsJson, Limit, NoWait, RunName
from backend.cli.output import say, write_json
from backend.cli.starting import finish
from backend.cli.views import write_run, write_runs

app = typer.Typer(
    help="Show, watch, stop and resume a run, or run it again.", no_args_is_help=True, rich_markup_mode=None
)


def runs(
    kind: Annotated[str | None, typer.Option(help="evaluation, training, check, play, rescore or replay.")] = None,
    status: Annotated[str | None, typer.Option(help="queued, running, paused, stopped, completed or failed.")] = None,
    environment: Annotated[str | None, typer.Option(help="Name of the environment.")] = None,
    text: Annotated[str | None, typer.Option(help="Part of the run's name.")] = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """List runs, newest first."""
    wanted = {"kind": kind, "status": status, "environment": environment, "text": text}
    found = list(connect().pages("/runs", limit=limit, **wanted))
    if as_json:
        write_json(found)
    else:
        write_runs(found)


@app.command("show")
def show(
    run: RunName,
    success: Annotated[str | None, typer.Option(help="The column (or `reward`) that decides about success.")] = None,
    at_least: Annotated[float | None, typer.Option(help="Success begins at this value.")] = None,
    phase: Annotated[str | None, typer.Option(help="Of a training run: heldout, train or warm_up.")] = None,
    step: Annotated[int | None, typer.Option(help="Of a training run: the training step.")] = None,
    as_json: AsJson = False,
) -> None:
    """One run with its figures: coverage, means with 95 % intervals, pass@k and pass^k, failures, tokens and cost."""
    client = connect()
    found = run_of(client, run)
    figures = client.get(f"/runs/{found['id']}/figures", phase=phase, step=step, success=success, at_least=at_least)
    if as_json:
        write_json({**found, "figures": figures})
    else:
        write_run(found, client.url, figures)


@app.command("watch")
def watch_run(run: RunName, as_json: AsJson = False) -> None:
    """Watch a run until it is over; Ctrl-C leaves it running."""
    client = connect()
    finish(client, run_of(client, run), no_wait=False, as_json=as_json)


@app.command("stop")
def stop(run: RunName, as_json: AsJson = False) -> None:
    """Ask a run to stop. An evaluation cancels its rollouts under way; finished ones stay, and it can be resumed."""
    _ask(run, "stop", as_json)


@app.command("resume")
def resume(run: RunName, as_json: AsJson = False) -> None:
    """Go on with a stopped, paused or failed run."""
    _ask(run, "resume", as_json)


@app.command("again")
def again(
    run: RunName,
    policy: Annotated[str | None, typer.Option(help="Another policy, by name or id.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="Another sampling temperature.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Another nucleus sampling.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Other tokens a turn.")] = None,
    tasks: Annotated[int | None, typer.Option(min=1, help="Another number of tasks.")] = None,
    first_task: Annotated[int | None, typer.Option(min=0, help="Another first task.")] = None,
    group_size: Annotated[int | None, typer.Option(min=1, help="Other episodes of each task.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Another seed of the sampling.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Other episodes in flight.")] = None,
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Run an evaluation again: exactly as it was, or with what is named changed. Ends with 1 when a rollout failed."""
    client = connect()
    changes = {
        "policy_id": policy_of(client, policy)["id"] if policy else None,
        "temperature": temperature,
        "top_p": top_p,
        "max_tokens_per_turn": max_tokens,
        "tasks": tasks,
        "first_task": first_task,
        "group_size": group_size,
        "seed": seed,
        "concurrency": concurrency,
    }
    named = {name: value for name, value in changes.items() if value is not None}
    started = client.post(f"/runs/{run_of(client, run)['id']}/again", {"changes": named})
    finish(client, started, no_wait=no_wait, as_json=as_json)


def _ask(name: str, what: str, as_json: bool) -> None:
    client = connect()
    found = client.post(f"/runs/{run_of(client, name)['id']}/{what}")
    if as_json:
        write_json(found)
    else:
        word = "is asked to stop" if what == "stop" and found["status"] == "running" else f"is {found['status']}"
        say(f"run {short(found['id'])} {word}")
