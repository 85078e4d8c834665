"""`proctor export`: a checkpoint as a folder that others can load, proven before it is handed out."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from backend.cli.connection import connect
from backend.cli.names import run_of, short
from backend.cli.options import AsJson
from backend.cli.output import BAD_RESULT, fail, say, write_json
from backend.cli.watching import progress_bars
from backend.client import Client

POLL_SECONDS = 0.5
_OVER = {"completed", "refused", "failed"}


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A training run: its id, the end of it, or `last`.")],
    checkpoint: Annotated[str | None, typer.Option(help="Another checkpoint than the best one: its id.")] = None,
    to: Annotated[Path, typer.Option(help="Folder for the zip.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """Export the best checkpoint of a training run. Ends with 1 when the reloaded export does not prove itself."""
    client = connect()
    started = client.post(
        "/exports", {"checkpoint_id": checkpoint or best_checkpoint(client, run_of(client, run))["id"]}
    )
    done = wait_for_export(client, started, quiet=as_json)
    if done["status"] != "completed":
        fail(done["reason"] or f"the export ended {done['status']}", BAD_RESULT)
    to.mkdir(parents=True, exist_ok=True)
    target = to / f"proctor-export-{short(done['id'])}.zip"
    size = client.download(f"/exports/{done['id']}/download", target)
    if as_json:
        write_json({**done, "file": str(target), "bytes": size})
    else:
        say(f"{target} ({size / 1e6:.1f} MB), {client.url}/exports/{done['id']}")


def best_checkpoint(client: Client, run: dict[str, Any]) -> dict[str, Any]:
    found = list(client.all("/checkpoints", run_id=run["id"], is_best=True))
    if not found:
        fail(f"{run['name']} has no checkpoint with a held-out reward yet")
    return found[0]


def wait_for_export(client: Client, export: dict[str, Any], *, quiet: bool) -> dict[str, Any]:
    with progress_bars(quiet=quiet) as progress:
        bar = progress.add_task("export", total=None, rate="")
        while export["status"] not in _OVER:
            state = export["progress"]
            what = state.get("message") or state.get("phase") or export["status"]
            total = state.get("total") or None
            progress.update(bar, description=f"export: {what}", completed=state.get("done", 0), total=total)
            time.sleep(POLL_SECONDS)
            export = client.get(f"/exports/{export['id']}")
    return export
