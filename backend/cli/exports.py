"""`proctor export`: export a checkpoint, verify it and download it."""

import contextlib
import time
import zipfile
from pathlib import Path
from typing import Annotated, Any

import typer

from backend.cli.connection import connect
from backend.cli.names import find_checkpoint, find_run, short
from backend.cli.options import AsJson
from backend.cli.output import BAD_RESULT, fail, say, write_json, write_table
from backend.cli.watching import POLL_SECONDS, look_while, work_bar
from backend.domain.vocabulary import ExportForm
from proctor import Client

_OVER = {"completed", "refused", "failed"}
Form = Annotated[
    ExportForm | None, typer.Option(help="Default: all weights, or the adapter merged into its base model.")
]


def export(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT",
            help="Id of a checkpoint or its last characters; a policy or run (`last`): its best checkpoint.",
        ),
    ],
    form: Form = None,
    to: Annotated[Path, typer.Option(help="Folder for the zip.")] = Path(),
    unpack: Annotated[bool, typer.Option("--unpack", help="Unpack the zip into a folder.")] = False,
    store: Annotated[bool, typer.Option("--store", help="Also keep the unpacked files in the artifact store.")] = False,
    licence: Annotated[
        str, typer.Option("--license", "--licence", help="License as model hubs spell it, such as apache-2.0.")
    ] = "",
    gguf_type: Annotated[str, typer.Option(help="Precision of a GGUF file: f16, bf16 or f32.")] = "f16",
    hub: Annotated[str, typer.Option(metavar="OWNER/NAME", help="Upload it to the Hugging Face Hub.")] = "",
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    is_dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --hub: only show what would be uploaded.")
    ] = False,
    forms: Annotated[bool, typer.Option("--forms", help="Only list the available forms.")] = False,
    as_json: AsJson = False,
) -> None:
    """Export a checkpoint. Exits with 1 if the export cannot be verified or the upload fails."""
    if is_dry_run and not hub:
        fail("--dry-run needs --hub OWNER/NAME")
    client = connect()
    found = checkpoint_of(client, checkpoint)
    if forms:
        _show_forms(client, found, as_json=as_json)
        return
    request = {"checkpoint_id": found["id"], "form": form, "licence": licence, "gguf_type": gguf_type}
    done = wait_for_export(client, client.post("/exports", {**request, "is_stored": store}), quiet=as_json)
    if done["status"] != "completed":
        if as_json:
            write_json(done)
        fail(done["reason"] or f"the export ended as {done['status']}", BAD_RESULT)
    done |= _fetch(client, done, to, unpack=unpack)
    if hub:
        target = {"repository": hub, "is_private": private}
        send = preview_upload if is_dry_run else upload
        done["hub"] = send(client, done["id"], target, quiet=as_json)
    if as_json:
        write_json(done)
    else:
        say(f"{done['file']} ({done['bytes'] / 1e6:.1f} MB, {done['form']}), {client.url}/exports/{done['id']}")


def checkpoint_of(client: Client, name: str) -> dict[str, Any]:
    """A checkpoint by id or the end of it, the best one of a policy, or the best one of a run."""
    if name != "last" and (found := find_checkpoint(client, name)):
        return found
    if run := find_run(client, name):
        return best_checkpoint(client, run)
    fail(f"there is no checkpoint, trained policy or run {name!r}; `proctor checkpoints list` shows them")


def best_checkpoint(client: Client, run: dict[str, Any]) -> dict[str, Any]:
    found = list(client.pages("/checkpoints", run_id=run["id"], is_best=True))
    if not found:
        fail(f"{run['name']} has no checkpoint with a held-out reward yet")
    return found[0]


def wait_for_export(client: Client, export: dict[str, Any], *, quiet: bool) -> dict[str, Any]:
    """Wait until an export has finished. Ctrl-C leaves it running."""
    with work_bar("export", f"The export continues: {client.url}/exports/{export['id']}", quiet=quiet) as move:
        while export["status"] not in _OVER:
            move(description=f"export: {export['message']}", completed=export["done"], total=export["total"])
            time.sleep(POLL_SECONDS)
            export = client.get(f"/exports/{export['id']}")
    return export


def _fetch(client: Client, done: dict[str, Any], to: Path, *, unpack: bool) -> dict[str, Any]:
    """Download the zip, or its files into a folder of the same name."""
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
    offered = client.get(f"/checkpoints/{checkpoint['id']}/exports/forms")["items"]
    if as_json:
        write_json(offered)
        return
    rows = [(each["form"], "no" if each["refusal"] else "yes", each["refusal"] or each["help"]) for each in offered]
    write_table(("form", "available", "why"), rows, empty="There are no forms.")


def preview_upload(client: Client, export_id: str, target: dict[str, Any], *, quiet: bool) -> dict[str, Any]:
    """Show what an upload would send."""
    plan: dict[str, Any] = client.post(f"/exports/{export_id}/hub", target | {"dry_run": True})
    if not quiet:
        write_table(("file", "bytes"), [(name, f"{size:,}") for name, size in plan["files"].items()], empty="no files")
        count, size = len(plan["files"]), plan["bytes"] / 1e6
        say(f"Nothing was uploaded. To {target['repository']}: {count} files, {size:.1f} MB, one commit.")
    return plan


def upload(client: Client, export_id: str, target: dict[str, Any], *, quiet: bool) -> dict[str, Any]:
    """Upload with the Hub token of this machine and wait. Exits with 1 if the upload fails."""
    plan: dict[str, Any] = client.post(f"/exports/{export_id}/hub", target | {"token": own_token()})
    state = look_while(
        lambda upload: upload["status"] not in {"completed", "failed"},
        plan["upload"],
        lambda: client.get(f"/exports/{export_id}")["upload"],
    )
    if state["status"] == "failed":
        fail(state["reason"] or "the upload failed", BAD_RESULT)
    if not quiet:
        say(str(state["url"]))
    return state


def own_token() -> str | None:
    """HF_TOKEN, or the token that `hf auth login` stored here. None: the worker uses its own."""
    try:
        from huggingface_hub import get_token
    except ImportError:
        return None
    token: str | None = get_token()
    return token
