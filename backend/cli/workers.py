"""`proctor workers`: who carries runs out, with what, at what."""

from typing import Any

from backend.cli.connection import connect
from backend.cli.options import AsJson
from backend.cli.output import say, write_json, write_table


def workers(as_json: AsJson = False) -> None:
    """Each worker with its queues, machine, engines and what it works on; and what can be done here at all."""
    found = connect().get("/workers")
    if as_json:
        write_json(found)
        return
    columns = ("worker", "state", "queues", "machine", "gpu", "engines", "works on")
    rows = [_row(worker) for worker in found["workers"]]
    write_table(columns, rows, empty="No worker is there. `proctor up` starts them; runs wait until one reports.")
    for ability in found["abilities"]:
        mark = "✗" if ability["refusal"] else "✓"
        say(f"{mark} {ability['name']}: {ability['refusal'] or ', '.join(ability['by'])}")


def _row(worker: dict[str, Any]) -> tuple[object, ...]:
    can, work = worker["capabilities"], worker["work"]
    state = "silent" if worker["is_silent"] else "working" if work else "idle"
    gpus = ", ".join(f"{gpu['name']} {gpu['memory_mb'] / 1024:.0f} GB" for gpu in can["gpus"]) or None
    reach = " CUDA" * bool(can["cuda"]) + " bf16" * bool(can["bf16"])
    if len(can["gpus"]) > 1:
        gpus = f"{can['cuda_devices'] or len(can['gpus'])} GPUs: {gpus}"
    return (
        *(worker["name"], state, ", ".join(worker["queues"])),
        f"{can['cpus']} CPUs, {can['memory_mb'] / 1024:.0f} GB",
        f"{gpus}{reach}" if gpus else None,
        ", ".join(f"{name} {version}" for name, version in can["engines"].items()) or None,
        ", ".join(each["run"] or each["job"] for each in work) or None,
    )
