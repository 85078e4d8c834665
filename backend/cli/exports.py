"""`proctor export`: export a checkpoint, verify it and download it."""

import contextlib
import time
import zipfile
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from backend.cli.connection import connect
from backend.cli.derived import Json, takes_request
from backend.cli.names import find_checkpoint
from backend.cli.output import BAD_RESULT, AsJson, fail, say, write_json, write_table
from backend.cli.views import estimate, percent
from backend.cli.watching import POLL_SECONDS, wait_for
from backend.web.formats import short
from proctor import Client

AUTO = "auto"
RATES = {"canary": "passed an impossible task", "honeypot": "took a bait", "flagged": "flagged"}


@takes_request("exports.start", "form", "gguf_type")
def export(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT",
            help="Id of a checkpoint or its last characters; a policy or run (`last`): its best checkpoint.",
        ),
    ],
    request: Json,
    to: Annotated[Path, typer.Option(help="Folder for the zip.")] = Path(),
    unpack: Annotated[bool, typer.Option("--unpack", help="Unpack the zip into a folder.")] = False,
    store: Annotated[bool, typer.Option("--store", help="Also keep the unpacked files in the artifact store.")] = False,
    licence: Annotated[
        str, typer.Option("--license", "--licence", help="License as model hubs spell it, such as apache-2.0.")
    ] = "",
    hub: Annotated[str, typer.Option(metavar="OWNER/NAME", help="Upload it to the Hugging Face Hub.")] = "",
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    is_dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --hub: only show what would be uploaded.")
    ] = False,
    transfer: Annotated[
        str | None,
        typer.Option(
            metavar="ENV,ENV",
            help="First compare it with a reference on these environments, in a transfer report. `auto`: those of the"
            " training run, then environments with canaries or honeypots.",
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="With --transfer: checkpoint or policy to compare with. Default: the run's earliest one."),
    ] = None,
    detect: Annotated[
        float | None,
        typer.Option(help="With --transfer: difference to detect with power 0.8. Default: 0.1."),
    ] = None,
    max_rollouts: Annotated[
        int | None, typer.Option(help="With --transfer: maximum number of rollouts, both sides. Default: 2000.")
    ] = None,
    max_minutes: Annotated[
        int | None, typer.Option(help="With --transfer: maximum minutes. Default: no limit.")
    ] = None,
    forms: Annotated[bool, typer.Option("--forms", help="Only list the available forms.")] = False,
    as_json: AsJson = False,
) -> None:
    """Export a checkpoint. Exits with 1 if the export cannot be verified or the upload fails."""
    if is_dry_run and not hub:
        fail("--dry-run needs --hub OWNER/NAME")
    client = connect()
    found = find_checkpoint(client, checkpoint) if checkpoint != "last" else None
    if found is None:  # the best one of a run
        run = client.find(f"/runs/{quote(checkpoint, safe='')}")
        if run is None:
            fail(f"there is no checkpoint, trained policy or run {checkpoint!r}; `proctor checkpoints list` shows them")
        found = next(iter(client.pages("/checkpoints", run_id=run["id"], is_best=True)), None)
        if found is None:
            fail(f"{run['name']} has no checkpoint with a held-out reward yet")
    if forms:
        offered = client.get(f"/checkpoints/{found['id']}/exports/forms")["items"]
        if as_json:
            return write_json(offered)
        rows = [(each["form"], "no" if each["refusal"] else "yes", each["refusal"] or each["help"]) for each in offered]
        return write_table(("form", "available", "why"), rows, empty="There are no forms.")
    limits = {"reference": reference, "detect": detect, "max_rollouts": max_rollouts, "max_minutes": max_minutes}
    limits = {name: value for name, value in limits.items() if value is not None}
    if transfer is not None:
        names = [name.strip() for name in transfer.split(",") if name.strip() and name.strip() != AUTO]
        request["transfer"] = {"environments": names, **limits}
    elif limits:
        fail(f"--{next(iter(limits)).replace('_', '-')} needs --transfer ENV,ENV or --transfer {AUTO}")
    request |= {"licence": licence, "is_stored": store, "checkpoint_id": found["id"]}
    started = client.post("/exports", request)
    done = wait_for(client, f"/exports/{started['id']}", started, quiet=as_json)
    if done["transfer"] and not as_json:
        show_transfer(done["transfer"])
    if done["status"] != "completed":
        if as_json:
            write_json(done)
        fail(done["reason"] or f"the export ended as {done['status']}", BAD_RESULT)
    to.mkdir(parents=True, exist_ok=True)
    target = to / f"proctor-export-{short(done['id'])}.zip"
    done["bytes"] = client.download(f"/exports/{done['id']}/download", target).stat().st_size
    if unpack:
        with zipfile.ZipFile(target) as archive:
            archive.extractall(target.with_suffix(""))
        target.unlink()
        target = target.with_suffix("")
        done["bytes"] = sum(path.stat().st_size for path in target.iterdir())
    done["file"] = str(target)
    if hub:
        done["hub"] = _upload(client, done["id"], hub, private, is_dry_run=is_dry_run, quiet=as_json)
    if as_json:
        write_json(done)
    else:
        say(f"{done['file']} ({done['bytes'] / 1e6:.1f} MB, {done['form']}), {client.url}/exports/{done['id']}")


def show_transfer(report: Json) -> None:
    """Show a transfer report: rewards and traps by environment, warnings, and everything that was not played."""
    say(f"{report['exported']['name']} compared with {report['reference']['name']}", "bold")
    rewards, traps = [], []
    for each in report["environments"]:
        name = f"{each['name']}@{each['version']}"
        figures = [(each[kind] or {}).get("difference") for kind in ("reward", "normalized", "success")]
        tasks = f"{each['compared']:,} of {each['planned'] or each['tasks']:,} planned"
        power = "–" if each["power"] is None else f"{each['power']:.2f}"
        verdict = each["verdict"] or each["status"].replace("_", " ")
        rewards.append((name, verdict, *map(estimate, figures), tasks, power))
        for kind in ("canary", "honeypot", "flagged"):
            if rate := each[kind]:
                sides = [f"{rate[side]['found']:,} of {rate[side]['looked_at']:,}" for side in ("before", "after")]
                change = {"mean": rate["change"], "low": rate["low"], "high": rate["high"]}
                traps.append((name, RATES[kind], *sides, percent(change)))
    columns = ("environment", "verdict", "reward [95%]", "normalized [95%]", "success [95%]", "tasks", "power")
    write_table(columns, rewards, empty="No environments.")
    if traps:
        say("")
        write_table(("environment", "rollouts", "before", "after", "change [95%]"), traps, empty="")
    for each in report["environments"]:
        if each["reason"]:
            say(f"{each['name']}@{each['version']}: {each['reason']}", "yellow")
    for warning in [report["reason"], *report["warnings"]]:
        if warning:
            say(warning, "yellow" if warning == report["reason"] else "red")


def _upload(client: Client, export_id: str, repository: str, private: bool, *, is_dry_run: bool, quiet: bool) -> Json:
    """Upload with the Hub token of this machine and wait. Exits with 1 if the upload fails."""
    request: dict[str, object] = {"repository": repository, "is_private": private}
    if is_dry_run:
        plan = client.post(f"/exports/{export_id}/hub", request | {"dry_run": True})
        if not quiet:
            rows = [(name, f"{size:,}") for name, size in plan["files"].items()]
            write_table(("file", "bytes"), rows, empty="no files")
            size = plan["bytes"] / 1e6
            say(f"Nothing was uploaded. To {repository}: {len(rows)} files, {size:.1f} MB, one commit.")
        return plan
    with contextlib.suppress(ImportError):  # without it, the worker uses its own token
        from huggingface_hub import get_token

        request["token"] = get_token()  # HF_TOKEN, or the token of `hf auth login`
    upload = client.post(f"/exports/{export_id}/hub", request)["upload"]
    while upload["status"] not in {"completed", "failed"}:
        time.sleep(POLL_SECONDS)
        upload = client.get(f"/exports/{export_id}")["upload"]
    if upload["status"] == "failed":
        fail(upload["reason"] or "the upload failed", BAD_RESULT)
    if not quiet:
        say(str(upload["url"]))
    return upload
