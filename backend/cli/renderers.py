"""How the command line shows policies, tokens and workers."""

from typing import Annotated

import typer

from backend.cli.connection import connect
from backend.cli.derived import renders
from backend.cli.output import AsJson, console, say, write_fields, write_json, write_table
from backend.cli.watching import wait_for
from proctor import Json

MARKS = {
    **dict.fromkeys(("passed", "ok"), ("✓", "green")),
    **dict.fromkeys(("warned", "warning"), ("!", "yellow")),
    **dict.fromkeys(("failed", "problem"), ("✗", "red")),
    "skipped": ("·", "dim"),
}


def write_finding(finding: Json, name: str) -> None:
    """Print a finding of a connection test or of pre-flight checks."""
    mark, style = MARKS[finding["status"]]
    advice = f" {finding['advice']}" if finding["advice"] else ""
    console().print(f"{mark} {name}: {finding['sentence']}{advice}", style=style, markup=False)


@renders("policies.get")
def show_policy(policy: Json) -> None:
    fields = {"policy": policy["name"], "kind": policy["kind"], "description": policy["description"]}
    write_fields(fields | policy["configuration"] | {"key": "stored" if policy["has_secret"] else "none"})


@renders("policies.test_connection")
def show_connection_test(test: Json) -> None:
    for finding in test["findings"]:
        write_finding(finding, finding["check"])


def list_models(
    policy: Annotated[str, typer.Argument(metavar="POLICY", help="Name or id of a policy.")], as_json: AsJson = False
) -> None:
    """List the models that a policy's endpoint serves. Tests the connection."""
    client = connect()
    path = f"/policies/{policy}/test"
    test = wait_for(client, path, client.post(path), quiet=as_json)
    if as_json:
        write_json(test["models"])
    else:
        write_table(("model",), [(model,) for model in test["models"]], empty="The endpoint lists no models.")


@renders("tokens.create")
def show_new_token(token: Json) -> None:
    """Print the secret on a separate line, so that a script can read it."""
    console().print(token["secret"], markup=False)
    console().print("Copy it now: it is not shown again. Set it as PROCTOR_TOKEN.", style="dim")


@renders("workers.list")
def show_workers(found: Json) -> None:
    rows = []
    for worker in found["workers"]:
        hardware, work = worker["capabilities"], worker["work"]
        gpus = ", ".join(f"{gpu['name']} {gpu['memory_mb'] / 1024:.0f} GB" for gpu in hardware["gpus"])
        if len(hardware["gpus"]) > 1:
            gpus = f"{hardware['cuda_devices'] or len(hardware['gpus'])} GPUs: {gpus}"
        reach = " CUDA" * bool(hardware["cuda"]) + " bf16" * bool(hardware["bf16"])
        rows.append(
            (
                worker["name"],
                "silent" if worker["is_silent"] else "working" if work else "idle",
                ", ".join(worker["queues"]),
                f"{hardware['cpus']} CPUs, {hardware['memory_mb'] / 1024:.0f} GB",
                f"{gpus}{reach}" if gpus else None,
                ", ".join(f"{name} {version}" for name, version in hardware["engines"].items()) or None,
                ", ".join(each["run"] or each["job"] for each in work) or None,
            )
        )
    columns = ("worker", "state", "queues", "machine", "gpu", "engines", "current job")
    write_table(columns, rows, empty="No workers online. `proctor up` starts them. Runs wait for a worker.")
    for ability in found["abilities"]:
        mark = "✗" if ability["refusal"] else "✓"
        say(f"{mark} {ability['name']}: {ability['refusal'] or ', '.join(ability['by'])}")


@renders("overview.get_week")
def show_week(week: Json) -> None:
    """Print the figures of the overview page, each as a short table."""
    say(f"{week['since'][:10]} to {week['until'][:10]}")
    results = [
        (
            f"{each['environment']} v{each['version']}",
            each["policy"],
            _interval(each["reward"]),
            _interval(each["gain"], "+.3f"),
            each["baseline"],
        )
        for each in week["environments"]
    ]
    head = ("environment", "best policy", "reward", "gain", "over")
    write_table(head, results, empty="No evaluation ended this week.")
    worse = [
        (each["policy"], each["environment"], _interval(each["difference"], "+.3f"), each["cause"], each["run_id"])
        for each in week["regressions"]
    ]
    write_table(("regression", "environment", "difference", "changed", "run"), worse, empty="No regressions.")
    trust = [
        (
            f"{each['environment']} v{each['version']}",
            each["certificate"] or "not checked",
            _share(each["flag_rate"]),
            _share(each["audited_share"]),
            f"{_share(each['hack_low'])} to {_share(each['hack_high'])}" if each["hack_rate"] is not None else None,
        )
        for each in week["trust"]
    ]
    if trust:
        write_table(("environment", "certificate", "flagged", "audited", "hacks by verdicts"), trust, empty="")
    review = week["review"]
    say(f"Review: {review['open']} open, {review['new']} new, {review['verdicts']} verdicts")
    spending = [
        (each["project"], period, now["tokens"], now["cost"], round(now["gpu_hours"], 1), round(now["cpu_hours"], 1))
        for each in week["spending"]
        for period, now in (("this week", each["now"]), ("week before", each["before"]))
    ]
    periods = ("project", "period", "tokens", "usd", "gpu hours", "cpu hours")
    write_table(periods, spending, empty="Nothing was spent.")


def _interval(estimate: Json | None, form: str = ".3f") -> str | None:
    return f"{estimate['mean']:{form}} [{estimate['low']:{form}}, {estimate['high']:{form}}]" if estimate else None


def _share(value: float | None) -> str | None:
    return None if value is None else f"{value:.1%}"
