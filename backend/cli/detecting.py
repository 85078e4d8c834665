"""`proctor run detect`, `run interventions`: detectors over a stored run, and what their actions did to a training."""

from typing import Annotated, Any

import typer

from backend.cli.connection import connect
from backend.cli.names import run_of, short
from backend.cli.options import AsJson, NoWait, RunName
from backend.cli.output import BAD_RESULT, fail, say, write_json, write_table
from backend.cli.watching import look_while


def detect(
    run: RunName,
    altered: Annotated[
        int, typer.Option(min=0, max=1000, help="Of so many rollouts that succeeded, play altered replies too.")
    ] = 0,
    threshold: Annotated[
        list[str] | None,
        typer.Option(metavar="DETECTOR.NAME=NUMBER", help="A threshold for this look; may be given again and again."),
    ] = None,
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Let all detectors look at what a run stored, and say how many flags are new."""
    client = connect()
    found = run_of(client, run)
    path = f"/runs/{found['id']}/detection"
    look: dict[str, Any] = client.post(path, {"altered": altered, "thresholds": threshold or []})
    if not no_wait:
        look = look_while(lambda look: not look["is_over"], look, lambda: client.get(path))
    if as_json:
        write_json(look)
    elif not look["is_over"]:
        say(f"the detectors look at run {short(found['id'])}: {client.url}/runs/{found['id']}/flags")
    elif not look["error"]:
        _write(look)
    if look["error"]:
        fail(f"the look failed: {look['error']}", BAD_RESULT)


def interventions(run: RunName, as_json: AsJson = False) -> None:
    """What the actions of detectors did to a training run: rollouts kept out of the gradient, pauses, stops."""
    client = connect()
    found = client.get(f"/runs/{run_of(client, run)['id']}/interventions")
    if as_json:
        write_json(found)
        return
    rows = [
        (each["step"], each["detector"], each["action"].replace("_", " "), each["rollouts"], each["sentence"])
        for each in found["items"]
    ]
    write_table(("step", "detector", "action", "rollouts", "what was seen"), rows, empty="no detector stepped in")


def register(run: typer.Typer) -> None:
    """As commands of `proctor run`."""
    run.command("detect")(detect)
    run.command("interventions")(interventions)


def _write(look: dict[str, Any]) -> None:
    count = look["new_flags"]
    say(f"{count} new flag{'' if count == 1 else 's'} in {look['done']} rollouts")
    for name, flags in look["by_detector"].items():
        say(f"  {name} {flags}")
