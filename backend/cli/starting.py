"""Start a run and watch it: `proctor eval`, and what all commands that start runs share."""

import copy
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import quote

import typer

from backend.cli.connection import connect
from backend.cli.names import policy_of, short, split_pair, version_of
from backend.cli.options import AsJson, EnvironmentName, NoWait
from backend.cli.output import BAD_RESULT, OK, fail, say, write_json
from backend.cli.views import write_run
from backend.cli.watching import watch
from proctor import Client, Json


def evaluate(
    environment: EnvironmentName,
    policy: Annotated[str, typer.Argument(metavar="POLICY", help="Name or id of a policy.")],
    split: Annotated[str, typer.Option(help="heldout or train.")] = "heldout",
    tasks: Annotated[int, typer.Option(min=1, help="Number of tasks.")] = 100,
    first_task: Annotated[int, typer.Option(min=0, help="Index of the first task.")] = 0,
    group_size: Annotated[int, typer.Option(min=1, help="Rollouts per task.")] = 1,
    temperature: Annotated[float, typer.Option(min=0, help="Sampling temperature. 0: greedy.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Nucleus sampling.")] = 1.0,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum tokens per turn. Default: the environment's.")
    ] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Maximum number of concurrent rollouts.")] = None,
    workers: Annotated[int, typer.Option(min=1, max=16, help="Number of jobs that share the tasks.")] = 1,
    retries: Annotated[int, typer.Option(min=0, max=10, help="Retries of a failed rollout.")] = 2,
    context: Annotated[
        str | None,
        typer.Option(
            help="Part of the conversation that the policy reads: full, or last:N for its start and the last N turns. "
            "Default: the environment's."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Sampling seed.")] = 0,
    checkpoint: Annotated[
        str | None, typer.Option(help="Checkpoint of a trained policy. Default: the best one.")
    ] = None,
    judge: Annotated[
        list[str] | None, typer.Option(help="Name or id of a judge to run on the rollouts afterwards. Repeatable.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run.")] = None,
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate a policy on an environment's tasks. Exits with 1 if a rollout failed.

    Ctrl-C leaves the run running. `proctor run watch` shows it again, `run stop` stops it, `run resume` resumes it.
    """
    kind, colon, turns = (context or "").partition(":")
    if kind not in {"", "full", "last"} or (colon and (kind != "last" or not turns.isdecimal())):
        fail(f"--context {context}: write it as `full` or `last:N`, e.g. last:4")
    conversation = {"kind": kind} | ({"turns": int(turns)} if colon else {}) if kind else None
    client = connect()
    body = {
        "version_id": version_of(client, environment)["id"],
        "policy_id": policy_of(client, policy)["id"],
        "split": split,
        "tasks": tasks,
        "first_task": first_task,
        "group_size": group_size,
        "seed": seed,
        "temperature": temperature,
        "top_p": top_p,
        "max_tokens_per_turn": max_tokens,
        "concurrency": concurrency,
        "workers": workers,
        "retries": retries,
        "context": conversation,
        "checkpoint_id": checkpoint,
        "judge_ids": [client.get(f"/graders/{quote(each, safe='')}")["id"] for each in judge or []],
        "name": name,
    }
    run = client.post("/evaluations", {field: value for field, value in body.items() if value is not None})
    finish(client, run, no_wait=no_wait, as_json=as_json)


def finish(client: Client, run: dict[str, Json], *, no_wait: bool, as_json: bool) -> None:
    """Watch a run until it ends, show its figures and exit; with `no_wait` only show that it is queued."""
    if no_wait:
        if as_json:
            write_json(run)
        else:
            say(f"run {short(run['id'])} is queued: {client.url}/runs/{run['id']}")
        return
    run = watch(client, run, quiet=as_json)
    figures = client.get(f"/runs/{run['id']}/figures")
    if as_json:
        write_json({**run, "figures": figures})
    else:
        write_run(run, client.url, figures)
    raise typer.Exit(OK if run["status"] == "completed" and not run["summary"].get("failed") else BAD_RESULT)


def nested(choices: list[str], over: Mapping[str, Json] | None = None) -> dict[str, Json]:
    """Turn `["grpo.steps=200"]` into `{"grpo": {"steps": "200"}}` over existing settings; the server reads values."""
    settings: dict[str, Json] = copy.deepcopy(dict(over or {}))
    for choice in choices:
        name, value = split_pair(choice, "write it as name=value, e.g. --set grpo.steps=200")
        *blocks, last = name.split(".")
        target = settings
        for block in blocks:
            below = target.get(block)
            target[block] = below if isinstance(below, dict) else {}
            target = target[block]
        target[last] = value
    return settings
