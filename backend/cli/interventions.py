"""`proctor run interventions`: the consequences of detector flags in a training run."""

from backend.cli.connection import connect
from backend.cli.names import run_of
from backend.cli.options import AsJson, RunName
from backend.cli.output import write_json, write_table


def interventions(run: RunName, as_json: AsJson = False) -> None:
    """List what detectors did to a training run: rollouts kept out of the gradient, pauses, stops."""
    client = connect()
    found = client.get(f"/runs/{run_of(client, run)['id']}/interventions")
    if as_json:
        write_json(found)
        return
    rows = [
        (each["step"], each["detector"], each["action"].replace("_", " "), each["rollouts"], each["sentence"])
        for each in found["items"]
    ]
    write_table(("step", "detector", "action", "rollouts", "reason"), rows, empty="No detector has intervened.")
