"""`proctor eval` and `proctor run …`: start, show, watch, repeat and delete runs."""

import copy
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import quote

import typer

from backend.cli.connection import connect
from backend.cli.derived import renders, takes_request
from backend.cli.names import EnvironmentName, RunName, run_of, split_pair, version_of
from backend.cli.output import BAD_RESULT, OK, AsJson, NoWait, fail, group, say, write_json, write_table
from backend.cli.views import write_run
from backend.cli.watching import watch
from backend.web.formats import short
from proctor import Client, Json

app = group(help="Show, watch, stop and resume a run, or run it again.")


@takes_request(
    "runs.start_evaluation",
    *("split", "tasks", "first_task", "group_size", "temperature", "top_p", "max_tokens_per_turn", "concurrency"),
    *("workers", "retries", "context", "seed", "checkpoint_id", "opponent", "judge_ids", "name"),
)
def evaluate(
    environment: EnvironmentName,
    policy: Annotated[str, typer.Argument(metavar="POLICY", help="Name or id of a policy.")],
    request: Json,
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate a policy on an environment's tasks. Exits with 1 if a rollout failed.

    Ctrl-C leaves the run running. `proctor run watch` shows it again, `run stop` stops it, `run resume` resumes it.
    """
    if context := request.get("context"):
        kind, colon, turns = context.partition(":")
        if kind not in {"full", "last"} or (colon and (kind != "last" or not turns.isdecimal())):
            fail(f"--context {context}: write it as `full` or `last:N`, e.g. last:4")
        request["context"] = {"kind": kind} | ({"turns": int(turns)} if colon else {})
    client = connect()
    request["version_id"] = version_of(client, environment)["id"]
    policies = (each["id"] for each in client.pages("/policies") if policy in {each["name"], each["id"]})
    request["policy_id"] = next(policies, None) or fail(
        f"there is no policy {policy!r}; `proctor policy list` shows them"
    )
    judges = request.get("judge_ids", ())
    request["judge_ids"] = [client.get(f"/graders/{quote(each, safe='')}")["id"] for each in judges]
    finish(client, client.post("/evaluations", request), no_wait=no_wait, as_json=as_json)


def finish(client: Client, run: Json, *, no_wait: bool, as_json: bool) -> None:
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


@app.command("show")
@takes_request("results.get_figures", "success", "at_least", "phase", "step")
def show(run: RunName, request: Json, as_json: AsJson = False) -> None:
    """Show a run: coverage, means with 95% intervals, pass@k and pass^k, failures, tokens and cost."""
    client = connect()
    found = run_of(client, run)
    figures = client.get(f"/runs/{found['id']}/figures", **request)
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
@takes_request(
    "runs.start_evaluation",
    *("policy", "temperature", "top_p", "max_tokens_per_turn", "tasks", "first_task", "group_size", "seed"),
    "concurrency",
    optional=True,
)
def again(run: RunName, request: Json, no_wait: NoWait = False, as_json: AsJson = False) -> None:
    """Repeat an evaluation, unchanged or with the given changes. Exits with 1 if a rollout failed."""
    client = connect()
    started = client.post(f"/runs/{run_of(client, run)['id']}/again", {"changes": request})
    finish(client, started, no_wait=no_wait, as_json=as_json)


@app.command("delete")
def delete_run(run: RunName, as_json: AsJson = False) -> None:
    """Delete an imported run with all its rollouts. Runs that were played here are kept."""
    client = connect()
    found = run_of(client, run)
    client.delete(f"/runs/{found['id']}")
    if as_json:
        write_json({"deleted": found["id"]})
    else:
        say(f"Deleted {found['name']}.")


@renders("training.list_interventions")
def show_interventions(found: Json) -> None:
    rows = [
        (each["step"], each["detector"], each["action"].replace("_", " "), each["rollouts"], each["sentence"])
        for each in found["items"]
    ]
    write_table(("step", "detector", "action", "rollouts", "reason"), rows, empty="No detector has intervened.")
