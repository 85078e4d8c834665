"""`proctor export`: a checkpoint in a form that others can load, proven before it is handed out."""

import contextlib
import time
import zipfile
from pathlib import Path
from typing import Annotated, Any

import typer

from backend.cli.connection import connect
from backend.cli.hub_upload import dry_run, upload
from backend.cli.names import find_checkpoint, find_run, short
from backend.cli.options import AsJson
from backend.cli.output import BAD_RESULT, fail, say, write_json, write_table
from backend.cli.watching import POLL_SECONDS, work_bar
from backend.domain.vocabulary import ExportForm
from proctor import Client

_OVER = {"completed", "refused", "failed"}
Form = Annotated[ExportForm | None, typer.Option(help="Left out: all weights, or the adapter merged into its base.")]


def export(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT",
            help="A checkpoint's id or the end of it; a policy's name or a training run (`last`): its best one.",
        ),
    ],
    form: Form = None,
    to: Annotated[Path, typer.Option(help="Folder for the zip.")] = Path(),
    unpack: Annotated[bool, typer.Option("--unpack", help="The files in a folder instead of a zip.")] = False,
    store: Annotated[bool, typer.Option("--store", help="Keep them unpacked in the artifact store too.")] = False,
    licence: Annotated[str, typer.Option(help="As model hubs call it: apache-2.0.")] = "",
    gguf_type: Annotated[str, typer.Option(help="Precision of a GGUF file: f16, bf16 or f32.")] = "f16",
    hub: Annotated[str, typer.Option(metavar="OWNER/NAME", help="Send it to the Hugging Face Hub.")] = "",
    private: Annotated[bool, typer.Option("--private", help="Where the repository on the Hub is made anew.")] = False,
    is_dry_run: Annotated[bool, typer.Option("--dry-run", help="Of --hub only say what would be sent.")] = False,
    forms: Annotated[bool, typer.Option("--forms", help="Only list the forms that it can have.")] = False,
    as_json: AsJson = False,
) -> None:
    """Export a checkpoint. Ends with 1 when the reloaded export does not prove itself, or the Hub refuses it."""
    if is_dry_run and not hub:
        fail("--dry-run is about --hub: name the repository")
    client = connect()
    found = checkpoint_of(client, checkpoint)
    if forms:
        _show_forms(client, found, as_json=as_json)
        return
    asked = {"checkpoint_id": found["id"], "form": form, "licence": licence, "gguf_type": gguf_type}
    done = wait_for_export(client, client.post("/exports", {**asked, "is_stored": store}), quiet=as_json)
    if done["status"] != "completed":
        if as_json:
            write_json(done)
        fail(done["reason"] or f"the export ended {done['status']}", BAD_RESULT)
    done |= _fetch(client, done, to, unpack=unpack)
    if hub:
        send = dry_run if is_dry_run else upload
        done["hub"] = send(client, done["id"], hub, is_private=private, quiet=as_json)
    if as_json:
        write_json(done)
    else:
        say(f"{done['file']} ({done['bytes'] / 1e6:.1f} MB, {done['form']}), {client.url}/exports/{done['id']}")


def checkpoint_of(client: Client, name: str) -> dict[str, Any]:
    """A checkpoint by id or by the end of it, the best of a policy, or the best of a run."""
    if name != "last" and (found := find_checkpoint(client, name)):
        return found
    if run := find_run(client, name):
        return best_checkpoint(client, run)
    fail(f"there is no checkpoint, no trained policy and no run {name!r}; the page /checkpoints shows them")


def best_checkpoint(client: Client, run: dict[str, Any]) -> dict[str, Any]:
    found = list(client.pages("/checkpoints", run_id=run["id"], is_best=True))
    if not found:
        fail(f"{run['name']} has no checkpoint with a held-out reward yet")
    return found[0]


def wait_for_export(client: Client, export: dict[str, Any], *, quiet: bool) -> dict[str, Any]:
    """Ctrl-C leaves it going on and says where it can be fetched."""
    with work_bar("export", f"The export goes on: {client.url}/exports/{export['id']}", quiet=quiet) as move:
        while export["status"] not in _OVER:
            state = export["progress"]
            what = state.get("message") or state.get("phase") or export["status"]
            move(description=f"export: {what}", completed=state.get("done", 0), total=state.get("total") or None)
            time.sleep(POLL_SECONDS)
            export = client.get(f"/exports/{export['id']}")
    return export


def _fetch(client: Client, done: dict[str, Any], to: Path, *, unpack: bool) -> dict[str, Any]:
    """The zip, or its files in a folder of the same name."""
    to.mkdir(parents=True, exist_ok=True)
    target = to / f"proctor-export-{short(done['id'])}.zip"
    size = client.download(f"/exports/{done['id']}/download", target).stat().st_size
    if not unpack:
        return {"file": str(target), "bytes": size}
    folder = target.with_suffix("")
    with contextlib.closing(zipfile.ZipFile(target)) as archive:
        archive.extractall(folder)
    target.unlink()
    return {"file": str(folder), "bytes": sum(path.stat().st_size for path in folder.iterdir())}


def _show_forms(client: Client, checkpoint: dict[str, Any], *, as_json: bool) -> None:
    offered = client.get(f"/checkpoints/{checkpoint['id']}/exports/forms")
    if as_json:
        write_json(offered)
        return
    rows = [(each["form"], "no" if each["refusal"] else "yes", each["refusal"] or each["help"]) for each in offered]
    write_table(("form", "offered", "why"), rows, empty="There are no forms.")
