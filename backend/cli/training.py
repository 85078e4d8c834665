"""`proctor train` and `proctor run config`: launch a training run, look at it before, write it down as a file."""

import time
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from backend.cli.connection import connect
from backend.cli.names import run_of, version_of
from backend.cli.options import AsJson, RunName
from backend.cli.output import BAD_RESULT, OK, console, fail, say, write_json
from backend.cli.starting import finish, nested
from backend.cli.watching import POLL_SECONDS
from proctor import Client

OVER = {"completed", "failed"}
FILE_FIELDS = {"environment", "content_hash", "name", "without_certificate", "preset", "configuration"}
_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "problem": ("✗", "red")}


def train(
    environment: Annotated[
        str | None,
        typer.Argument(metavar="[ENVIRONMENT]", help="`name` or `name@version`; left out: what the file says."),
    ] = None,
    preset: Annotated[str | None, typer.Option(help="A tried configuration; `--preset list` explains them.")] = None,
    choices: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A choice by its name in the configuration: grpo.steps=200, grpo.levels=1,2; "
            "nothing after the = empties it. Repeatable; wins over preset and file. `--set list` explains every one.",
        ),
    ] = None,
    mix: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME@VERSION=WEIGHT",
            help="A further environment to train on at once; without version the newest, without weight 1, as much as "
            "the run's own. Repeatable.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="A configuration file, YAML or JSON; `run config` writes one."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run and of the policy that it trains.")] = None,
    without_certificate: Annotated[str | None, typer.Option(help="Why to train on an unchecked version.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only the pre-flight; ends with 1 when it finds a problem.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch/--no-wait", help="Show how it goes on, or start it and return at once.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Train a model: imitation (SFT), reinforcement (GRPO), or one after the other.

    Choices come from --set, else the file, else the preset, else the defaults; `--set list` and the launch form show
    all of them with what they do. `--dry-run` looks at the run before anything is queued: arithmetic, memory, chat
    template, how often the policy succeeds already, and how long it will take. A wrong choice is refused by its name.

    Ctrl-C leaves the run going; `proctor run watch` comes back, `run stop` stops it, `run resume` goes on.
    """
    client = connect()
    if preset == "list":
        _tell_presets(client.get("/training/presets"), as_json)
        return
    if choices == ["list"]:
        _tell_choices(client.get("/training/choices", preset=preset), as_json)
        return
    told = _read_file(config) if config else {}
    asked = {"preset": preset, "name": name, "without_certificate": without_certificate}
    body = told | {field: value for field, value in asked.items() if value is not None}
    body["configuration"] = nested([*(choices or []), *_mixed(mix)], told.get("configuration"))
    body["version_id"] = _version(client, environment, body)
    if dry_run:
        raise typer.Exit(_look(client, body, as_json=as_json))
    started = client.post("/training", body)
    finish(client, client.get(f"/runs/{started['id']}"), no_wait=not watch, as_json=as_json)


def _mixed(environments: list[str] | None) -> list[str]:
    return [f"mix={','.join(environments)}"] if environments else []


def _read_file(path: Path) -> dict[str, Any]:
    try:
        told = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        fail(f"{path} is neither YAML nor JSON: {error}")
    if not isinstance(told, dict) or not isinstance(told.get("configuration", {}), dict):
        fail(f"{path}: a configuration file is a mapping with `environment:` and `configuration:`")
    if unknown := sorted(map(str, told.keys() - FILE_FIELDS)):
        fail(f"{path}: unknown {', '.join(unknown)}; there are {', '.join(sorted(FILE_FIELDS))}")
    return told


def _version(client: Client, environment: str | None, body: dict[str, Any]) -> str:
    """What was typed wins over the file's environment, whose content hash then says nothing."""
    written = body.pop("environment", None)
    if environment and environment != written:
        body.pop("content_hash", None)
    wanted = environment or written
    if not wanted:
        fail("name the environment, or give a --config file that does")
    return str(version_of(client, str(wanted))["id"])


def _tell_presets(presets: dict[str, Any], as_json: bool) -> None:
    if as_json:
        write_json(presets)
        return
    for name, preset in presets.items():
        say(f"{name}: {preset['title']}", "bold")
        for label, field in (("", "about"), ("for: ", "suits"), ("takes: ", "takes"), ("seen: ", "seen")):
            say(f"  {label}{preset[field]}")


def _tell_choices(found: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        write_json(found)
        return
    for section, choices in groupby(found, key=itemgetter("section")):
        say(section, "bold")
        for choice in choices:
            values = f"  ({', '.join(choice['one_of'])})" if choice["one_of"] else ""
            say(f"  {choice['name']}={choice['default']}{values}", "cyan")
            say(f"      {choice['help']}")


def _look(client: Client, body: dict[str, Any], *, as_json: bool) -> int:
    """Each finding as it comes in. What needs a worker is not waited for where none answers."""
    found = client.post("/training/preflight", body)
    if not as_json:
        say(found["arithmetic"], "bold")
    told: dict[str, Any] = {}
    while True:
        if not as_json:
            _tell_findings(found["findings"], told)
        if found["status"] in OVER or not _has_worker(found):
            break
        time.sleep(POLL_SECONDS)
        found = client.get(f"/training/preflight/{found['id']}")
    if as_json:
        write_json(found)
    elif found["status"] == "failed":
        say(f"✗ the look by a worker failed: {found['reason']}", "red")
    elif found["status"] not in OVER:
        say("No worker answers: what needs one was not looked at.", "yellow")
    return BAD_RESULT if found["verdict"] == "problem" or found["status"] == "failed" else OK


def _has_worker(found: dict[str, Any]) -> bool:
    statuses = {finding["name"]: finding["status"] for finding in found["findings"]}
    return statuses.get("worker") == "ok" and statuses.get("choice") is None


def _tell_findings(findings: list[dict[str, Any]], told: dict[str, Any]) -> None:
    """Those that are new or say something else by now."""
    for finding in findings:
        if told.get(finding["name"]) == finding["sentence"]:
            continue
        told[finding["name"]] = finding["sentence"]
        mark, style = _MARKS[finding["status"]]
        advice = f" {finding['advice']}" if finding["advice"] else ""
        line = f"{mark} {finding['name'].replace('_', ' ')}: {finding['sentence']}{advice}"
        console().print(line, style=style, markup=False)


def configuration(run: RunName, as_json: AsJson = False) -> None:
    """A training run as a file: `proctor run config last > run.yaml`, then `proctor train --config run.yaml`."""
    client = connect()
    written = client.get(f"/training/{run_of(client, run)['id']}/configuration")
    written = {name: value for name, value in written.items() if value is not None}
    if as_json:
        write_json(written)
    else:
        say(yaml.safe_dump(written, sort_keys=False, allow_unicode=True, width=100).rstrip())
