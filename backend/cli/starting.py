"""`proctor eval`: start a run, watch it, tell how it ended."""

import copy
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

import typer

from backend.cli.connection import connect
from backend.cli.names import policy_of, short, version_of
from backend.cli.options import AsJson, EnvironmentName, NoWait
from backend.cli.output import fail, say, write_json
from backend.cli.views import write_run
from backend.cli.watching import status_of, watch
from proctor import Client


def evaluate(
    environment: EnvironmentName,
    policy: Annotated[str, typer.Argument(metavar="POLICY", help="Its name or id.")],
    split: Annotated[str, typer.Option(help="heldout or train.")] = "heldout",
    tasks: Annotated[int, typer.Option(min=1, help="Number of tasks.")] = 100,
    first_task: Annotated[int, typer.Option(min=0, help="Number of the first task.")] = 0,
    group_size: Annotated[int, typer.Option(min=1, help="Episodes of each task.")] = 1,
    temperature: Annotated[float, typer.Option(min=0, help="Sampling temperature; 0 is greedy.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Nucleus sampling.")] = 1.0,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens a turn; left out: what the environment declares.")
    ] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Episodes in flight.")] = None,
    workers: Annotated[int, typer.Option(min=1, max=16, help="Jobs that share the tasks.")] = 1,
    retries: Annotated[int, typer.Option(min=0, max=10, help="Further attempts at a rollout that failed.")] = 2,
    context: Annotated[
        str | None,
        typer.Option(
            help="What the policy reads of a conversation: full, or last:N for its beginning and the last N turns; "
            "left out: what the environment declares."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampling.")] = 0,
    checkpoint: Annotated[str | None, typer.Option(help="Of a trained policy; left out: the best one.")] = None,
    judge: Annotated[
        list[str] | None, typer.Option(help="A judge that looks at the rollouts afterwards, by name or id; repeatable.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run.")] = None,
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate a policy on an environment's tasks. Ends with 1 when a rollout failed.

    Ctrl-C leaves it running; `proctor run watch` comes back, `run stop` stops it, `run resume` goes on.
    """
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
        "context": _context(context),
        "checkpoint_id": checkpoint,
        "judge_ids": [client.get(f"/graders/{quote(each, safe='')}")["id"] for each in judge or []],
        "name": name,
    }
    run = client.post("/evaluations", {field: value for field, value in body.items() if value is not None})
    finish(client, run, no_wait=no_wait, as_json=as_json)


def _context(written: str | None) -> dict[str, Any] | None:
    """`full` or `last:4` as the API has it."""
    if written is None:
        return None
    kind, colon, turns = written.partition(":")
    if written == "full":
        return {"kind": "full"}
    if kind != "last" or (colon and not turns.isdecimal()):
        fail(f"--context {written}: write it as `full` or `last:N`, e.g. last:4")
    return {"kind": "last", "turns": int(turns)} if colon else {"kind": "last"}


def finish(client: Client, run: dict[str, Any], *, no_wait: bool, as_json: bool) -> None:
    if no_wait:
        if as_json:
            write_json(run)
        else:
            say(f"run {short(run['id'])} is queued: {client.url}/runs/{run['id']}")
        return
    over = watch(client, run, quiet=as_json)
    figures = client.get(f"/runs/{over['id']}/figures")
    if as_json:
        write_json({**over, "figures": figures})
    else:
        write_run(over, client.url, figures)
    raise typer.Exit(status_of(over))


def nested(choices: list[str], over: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """`["grpo.steps=200"]` as `{"grpo": {"steps": "200"}}`, over what is there already; the server reads the values."""
    found: dict[str, Any] = copy.deepcopy(dict(over or {}))
    for choice in choices:
        name, equals, value = choice.partition("=")
        if not equals or not name:
            fail(f"--set {choice}: write it as name=value, e.g. --set grpo.steps=200")
        *blocks, last = name.split(".")
        target = found
        for block in blocks:
            below = target.get(block)
            target[block] = below if isinstance(below, dict) else {}
            target = target[block]
        target[last] = value
    return found
