"""`proctor env import`: a foreign package from a folder, a zip, a git repository or a running server."""

import base64
import io
import time
import zipfile
from pathlib import Path
from typing import Annotated

import typer

from backend.cli.connection import connect
from backend.cli.derived import Json, takes_request
from backend.cli.names import split_pair
from backend.cli.output import BAD_RESULT, OK, AsJson, NoWait, fail, say, write_json
from backend.cli.watching import POLL_SECONDS, work_bar
from backend.domain.text import JsonObject

_SEEDS = {
    "honoured": "same seed, same beginning",
    "fixed": "every episode begins the same way",
    "ignored": "the same seed gives different beginnings",
}


@takes_request("imports.start", "name", "path")
def import_package(
    source: Annotated[
        str, typer.Argument(help="A folder, a zip, a git address, or with --running a server's address.")
    ],
    request: Json,
    reference: Annotated[str, typer.Option("--ref", help="Branch or tag of a git repository.")] = "",
    running: Annotated[
        bool, typer.Option("--running", help="SOURCE is the address of a running OpenEnv server.")
    ] = False,
    add: Annotated[
        list[str] | None, typer.Option(help="Additional Python package that it needs. Repeat for several.")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="An environment variable: NAME=value.")] = None,
    columns_from: Annotated[
        str, typer.Option(help="Dictionary of the observation that holds the reward columns.")
    ] = "",
    create: Annotated[bool, typer.Option(help="Create the environment's draft if the package can be played.")] = True,
    log: Annotated[bool, typer.Option("--log", help="Also show the log of building its virtual environment.")] = False,
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Import a package that others wrote: OpenEnv, or verifiers 0.3 and 0.4.

    It is started and played in the sandbox, which gives a report. If it can be played, a draft with a proposed
    manifest is created. Complete it (`proctor env pull NAME`, or in the browser) and publish it. Git
    repositories are cloned on this machine. Exits with 1 if the package cannot be played.
    """
    client = connect()
    variables = dict(split_pair(entry, "write --set NAME=value") for entry in set_ or [])
    files = _source_of(source, reference, request.get("path", ""), running=running)
    found = client.post("/imports", {**files, **request, "requires": add or [], "variables": variables})
    if no_wait:
        return write_json(found)
    with work_bar("import", f"The import continues: {client.url}/imports/{found['id']}", quiet=as_json) as move:
        while found["status"] not in {"completed", "failed", "stopped"}:
            time.sleep(POLL_SECONDS)
            found = client.get(f"/imports/{found['id']}")
            move(description=f"{found['name']}: {found['phase']}")
    if found["report"].get("starts") and columns_from:
        found = client.put(f"/imports/{found['id']}/columns", {"columns_from": columns_from})
    if found["report"].get("starts") and create:
        found = client.post(f"/imports/{found['id']}/environment", {"name": request.get("name")})
    if as_json:
        write_json(found)
    else:
        _tell(found)
        if log:
            say(client.get(f"/imports/{found['id']}/log")["log"])
    raise typer.Exit(OK if found["report"].get("starts") else BAD_RESULT)


def _source_of(source: str, reference: str, path: str, *, running: bool) -> JsonObject:
    """Return the source as the request expects it: the zipped files, or the address of a server."""
    from backend.domain.environments.packages import PackageInvalid
    from backend.environments.import_sources import read_repository, read_tree

    if running:
        return {"kind": "remote", "url": source}
    local = Path(source).expanduser()
    if local.is_file():
        return {"archive": base64.b64encode(local.read_bytes()).decode(), "source": local.name}
    try:
        if local.is_dir():
            files, source = read_tree(local), local.resolve().name
        elif "://" in source or source.startswith("git@"):
            files = read_repository(source, reference, path, is_own=True)
        else:
            fail(f"there is no folder or zip {source!r}, and it is not the address of a repository")
    except PackageInvalid as error:
        fail(str(error))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return {"archive": base64.b64encode(buffer.getvalue()).decode(), "source": source}


def _tell(found: JsonObject) -> None:
    report = found["report"]
    for note in report.get("notes", []):
        say(f"- {note}")
    for left in report.get("left_out", []):
        say(f"- skipped {left['path']}: {left['why']}")
    if not report.get("starts"):
        say(f"{found['name']} cannot be played as it is. The end of its log:")
        say(report.get("why_not") or found["phase"])
        return
    played = report["played"]
    low, high = played["reward_lowest"], played["reward_highest"]
    rewards = "no reward was seen" if low is None else f"rewards from {low:g} to {high:g}"
    leaks = ", ".join(leak["where"] for leak in report["leaks"])
    offered = ", ".join(found["path"] for found in report["breakdowns"])
    lines = [
        f"starts in {report['start_seconds']:g} s, {report['sessions']} sessions at a time",
        f"seed: {_SEEDS.get(report['seed'], 'unknown')}",
        f"{played['steps']} steps in {played['episodes']} episodes, {played['step_milliseconds']:g} ms each; {rewards}",
        f"columns: {', '.join(report['columns'])}" if report["columns"] else "",
        f"columns may come from (--columns-from): {offered}" if offered else "",
        f"the answer may be readable in {leaks}" if leaks else "",
        *(f"refused or broke on: {error}" for error in played["errors"]),
    ]
    for line in filter(None, lines):
        say(line)
    for problem in found["problems"]:
        say(f"to complete: {problem}")
    if found["environment"]:
        say(f"{found['environment']} begins as a draft: complete its manifest and publish it.")
