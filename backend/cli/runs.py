"""`proctor run …`: show, watch and repeat runs."""

from typing import Annotated

import typer

from backend.cli.connection import connect
from backend.cli.derived import Json, renders
from backend.cli.names import policy_of, run_of, short
from backend.cli.options import AsJson, NoWait, RunName
from backend.cli.output import say, write_json, write_table
from backend.cli.starting import finish
from backend.cli.views import write_run

app = typer.Typer(
    help="Show, watch, stop and resume a run, or run it again.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("show")
def show(
    run: RunName,
    success: Annotated[str | None, typer.Option(help="Column that decides about success, or `reward`.")] = None,
    at_least: Annotated[float | None, typer.Option(help="Lowest value that counts as a success.")] = None,
    phase: Annotated[str | None, typer.Option(help="Training runs only: heldout, train or warm_up.")] = None,
    step: Annotated[int | None, typer.Option(help="Training runs only: the training step.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show a run: coverage, means with 95% intervals, pass@k and pass^k, failures, tokens and cost."""
    client = connect()
    found = run_of(client, run)
    figures = client.get(f"/runs/{found['id']}/figures", phase=phase, step=step, success=success, at_least=at_least)
    if as_json:
        write_json({**found, "figures": figures})
    else:
        write_run(found, client.url, figures)


@app.command("watch")
def watch_run(run: RunName, as_json: AsJson = False) -> None:
    """Watch a run until it ends. Ctrl-C leaves it running."""
    client = connect()
    finish(client, run_of(client, run), no_wait=False, as_json=as_json)


@renders("runs.stop")
@renders("runs.resume")
def show_state(run: Json) -> None:
    state = "stopping" if run["status"] == "running" else run["status"]
    say(f"run {short(run['id'])} is {state}")


@app.command("again")
def again(
    run: RunName,
    policy: Annotated[str | None, typer.Option(help="Name or id of another policy.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="Another sampling temperature.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Another value for nucleus sampling.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Another maximum of tokens per turn.")] = None,
    tasks: Annotated[int | None, typer.Option(min=1, help="Another number of tasks.")] = None,
    first_task: Annotated[int | None, typer.Option(min=0, help="Another first task.")] = None,
    group_size: Annotated[int | None, typer.Option(min=1, help="Another number of rollouts per task.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Another sampling seed.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Another maximum of concurrent rollouts.")] = None,
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Repeat an evaluation, unchanged or with the given changes. Exits with 1 if a rollout failed."""
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
    given = {name: value for name, value in changes.items() if value is not None}
    started = client.post(f"/runs/{run_of(client, run)['id']}/again", {"changes": given})
    finish(client, started, no_wait=no_wait, as_json=as_json)


@renders("training.list_interventions")
def show_interventions(found: Json) -> None:
    rows = [
        (each["step"], each["detector"], each["action"].replace("_", " "), each["rollouts"], each["sentence"])
        for each in found["items"]
    ]
    write_table(("step", "detector", "action", "rollouts", "reason"), rows, empty="No detector has intervened.")
