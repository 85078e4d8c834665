"""`proctor env …`: packages on disk and environments on the server."""

from pathlib import Path
from typing import Annotated, Any

import typer

from backend.cli.connection import connect
from backend.cli.names import version_of
from backend.cli.options import AsJson, EnvironmentName, NoWait
from backend.cli.output import BAD_RESULT, OK, console, fail, say, write_json, write_table
from backend.cli.watching import watch
from backend.client import Client

app = typer.Typer(help="Write, check and play environments.", no_args_is_help=True, rich_markup_mode=None)

_MARKS = {"passed": "✓ passed", "warned": "! warned", "failed": "✗ failed", "skipped": "– skipped"}


@app.command("init")
def init(
    name: Annotated[str, typer.Argument(help="Lower case letters, digits and `_`.")],
    template: Annotated[str, typer.Option(help="single_turn or multi_turn_game.")] = "single_turn",
    folder: Annotated[Path | None, typer.Option(help="Where to write it; left out: a folder of that name.")] = None,
) -> None:
    """Write a new package from a template. Needs no server."""
    from backend.cli import packages  # reads manifests, which `up` need not

    target = folder or Path(name)
    files = packages.new_package(name, template)
    packages.write_folder(target, files)
    say(f"{len(files)} files in {target}. `proctor env push {target}` sends them.")


@app.command("push")
def push(
    folder: Annotated[Path, typer.Argument(help="The package's folder.")] = Path(),
    publish: Annotated[bool, typer.Option("--publish", help="Publish the next version as well.")] = False,
    notes: Annotated[str, typer.Option(help="What is new in this version.")] = "",
    as_json: AsJson = False,
) -> None:
    """Send a package as the draft of its environment, which is made when it is new."""
    from backend.cli import packages

    files = packages.read_folder(folder)
    name = packages.name_of(files)
    client = connect()
    if client.find(f"/environments/{name}") is None:
        client.post("/environments", {"name": name, "files": files})
    draft = client.put(f"/environments/{name}/draft", {"files": files})
    problems = draft["validation"]["problems"]
    version = None
    if publish and draft["validation"]["is_publishable"]:
        version = client.post(f"/environments/{name}/publish", {"notes": notes, "revision": draft["revision"]})
    if as_json:
        write_json({"environment": name, "revision": draft["revision"], "problems": problems, "version": version})
    else:
        _tell_pushed(name, problems, version)
    raise typer.Exit(OK if draft["validation"]["is_publishable"] else BAD_RESULT)


@app.command("pull")
def pull(
    environment: EnvironmentName,
    folder: Annotated[Path | None, typer.Option(help="Where to write it; left out: a folder of its name.")] = None,
    draft: Annotated[bool, typer.Option("--draft", help="The draft instead of a version.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over files that are there.")] = False,
) -> None:
    """Write an environment's files to disk."""
    from backend.cli import packages

    client = connect()
    name, _, number = environment.partition("@")
    if draft:
        files = client.get(f"/environments/{name}/draft")["files"]
    else:
        number = number or str(version_of(client, name)["number"])
        files = client.get(f"/environments/{name}/versions/{number}")["files"]
    target = folder or Path(name)
    packages.write_folder(target, files, force=force)
    say(f"{len(files)} files in {target}")


@app.command("list")
def list_environments(as_json: AsJson = False) -> None:
    """All environments with their newest version."""
    found = list(connect().all("/environments"))
    if as_json:
        write_json(found)
        return
    rows = [_row(environment) for environment in found]
    columns = ("environment", "version", "hash", "certificate", "columns", "description")
    write_table(columns, rows, empty="No environment yet: `proctor env init`.")


@app.command("check")
def check(environment: EnvironmentName, no_wait: NoWait = False, as_json: AsJson = False) -> None:
    """Run the checks of a version; ends with 1 when one fails."""
    client = connect()
    version = version_of(client, environment)
    address = f"/environments/{version['environment']}/versions/{version['number']}"
    started = client.post(f"{address}/checks")
    if no_wait:
        write_json(started)
        return
    run = watch(client, client.get(f"/runs/{started['run_id']}"), quiet=as_json)
    if run["status"] != "completed":
        fail(run["reason"] or f"the checks ended {run['status']}", BAD_RESULT)
    certificate = client.get(f"{address}/certificate")
    if as_json:
        write_json(certificate)
    else:
        rows = [(_MARKS[result["status"]], result["check"], result["sentence"]) for result in certificate["results"]]
        write_table(("", "check", "what was seen"), rows, empty="No check ran.")
    raise typer.Exit(BAD_RESULT if certificate["status"] == "failed" else OK)


@app.command("play")
def play(
    environment: EnvironmentName,
    level: Annotated[int | None, typer.Option(min=0, help="Difficulty.")] = None,
    index: Annotated[int | None, typer.Option(min=0, help="Number of the task.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the task.")] = None,
) -> None:
    """Play an episode by hand in the terminal; it is stored as a rollout of the policy `human`."""
    from backend.cli.play import play_episode

    client = connect()
    version = version_of(client, environment)
    play_episode(client, version, {"level": level, "index": index, "seed": seed})


def certificate_of(client: Client, version: dict[str, Any]) -> str | None:
    address = f"/environments/{version['environment']}/versions/{version['number']}"
    status: str | None = client.get(address)["certificate"]
    return status


def _row(environment: dict[str, Any]) -> tuple[object, ...]:
    latest = environment["latest"]
    if latest is None:
        return environment["name"], "draft", None, None, "", environment["description"]
    columns = " ".join(f"{column['name']}×{column['weight']:g}" for column in latest["columns"])
    shown = (latest["number"], latest["content_hash"][:12], latest["certificate"], columns)
    return environment["name"], *shown, environment["description"]


def _tell_pushed(name: str, problems: list[dict[str, Any]], version: dict[str, Any] | None) -> None:
    shown = console()
    for problem in problems:
        key = f"{problem['key']}: " if problem["key"] else ""
        shown.print(f"{problem['path']}:{problem['line']}: {key}{problem['message']}", markup=False)
    if version:
        shown.print(f"{name} v{version['number']} is published ({version['content_hash'][:12]})", markup=False)
    else:
        shown.print(f"the draft of {name} is saved", markup=False)
