"""`proctor sweep start FILE`, and how the command line shows sweeps."""

from pathlib import Path
from typing import Annotated

import typer
import yaml

from backend.cli.connection import connect
from backend.cli.derived import Json, renders, takes_request
from backend.cli.names import version_of
from backend.cli.output import BAD_RESULT, OK, AsJson, NoWait, fail, group, say, write_fields, write_json, write_table
from backend.cli.runs import nested
from backend.cli.training import Choices
from backend.cli.views import estimate
from backend.cli.watching import wait_for
from backend.web.formats import short

MAX_FILE_BYTES = 1_000_000

app = group(help="Search for training settings: start runs with different values, stop the worse ones early.")


@app.command("start")
@takes_request(
    "sweeps.start",
    *("name", "preset", "sampler", "pruner", "trials", "parallel", "startup_trials", "max_steps", "max_hours"),
    *("seed", "without_certificate"),
    optional=True,
)
def start(
    file: Annotated[
        Path,
        typer.Argument(
            exists=True, dir_okay=False, help="A sweep in YAML or JSON: `environment:`, `parameters:`, settings."
        ),
    ],
    request: Json,
    environment: Annotated[
        str | None, typer.Option(help="`name` or `name@version`. Default: the environment of the file.")
    ] = None,
    choices: Choices = None,
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Start a sweep from a file. Options override the file. Exits with 1 if the sweep stopped or failed.

    Ctrl-C leaves the sweep running. `proctor sweep show` shows it, `sweep stop` stops it, `sweep resume` resumes it.
    """
    if file.stat().st_size > MAX_FILE_BYTES:
        fail(f"{file} is larger than 1 MB")
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        fail(f"{file} is neither YAML nor JSON: {error}")
    if not isinstance(found, dict) or not isinstance(found.get("configuration", {}), dict):
        fail(f"{file}: a sweep is a mapping with `environment:` and `parameters:`")
    client = connect()
    body = found | request
    named = environment or body.pop("environment", None)
    body.pop("environment", None)
    if not named:
        fail("name the environment in the file, or with --environment")
    body["configuration"] = nested(choices or [], found.get("configuration"))
    body["version_id"] = str(version_of(client, str(named))["id"])
    sweep = client.post("/sweeps", body)
    if not no_wait:
        sweep = wait_for(client, f"/sweeps/{sweep['id']}", sweep, quiet=as_json)
    if as_json:
        write_json(sweep)
    else:
        show_sweep(sweep)
        say(f"{client.url}/sweeps/{sweep['id']}")
    raise typer.Exit(OK if no_wait or sweep["is_successful"] else BAD_RESULT)


@renders("sweeps.get")
@renders("sweeps.stop")
@renders("sweeps.resume")
def show_sweep(sweep: Json) -> None:
    best = sweep["best"]
    write_fields(
        {
            "sweep": sweep["name"],
            "id": sweep["id"],
            "environment": sweep["environment"],
            "status": sweep["status"] + (f": {sweep['reason']}" if sweep["reason"] else ""),
            "search": f"{sweep['sampler']}, pruner {sweep['pruner']}, {sweep['parallel']} at a time",
            "runs": f"{sweep['done']} of {sweep['total']} ended",
            "best": f"run {best['number']}, {estimate(best | {'mean': best['reward']})}" if best else None,
            "importance": ", ".join(f"{name} {share:.0%}" for name, share in (sweep["importance"] or {}).items())
            or None,
        }
    )
    names = list(sweep["parameters"])
    rows = [
        (
            trial["number"],
            trial["state"],
            *(trial["values"].get(name) for name in names),
            estimate(trial | {"mean": trial["reward"]}),
            trial["last_step"],
            short(trial["run_id"]) if trial["run_id"] else "–",
            trial["reason"] or "",
        )
        for trial in sweep["trials"]
    ]
    write_table(
        ("number", "state", *names, "held-out reward", "step", "run", ""), rows, empty="No run has started yet."
    )
