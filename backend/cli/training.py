"""`proctor train` and `proctor run config`: check and start a training run, and write its configuration file."""

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
        typer.Argument(metavar="[ENVIRONMENT]", help="`name` or `name@version`. Default: the environment of the file."),
    ] = None,
    preset: Annotated[str | None, typer.Option(help="Start from a preset. `--preset list` shows them.")] = None,
    choices: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting, such as grpo.steps=200 or grpo.levels=1,2; NAME= clears it. Overrides preset and file. "
            "Repeatable. `--set list` shows all settings.",
        ),
    ] = None,
    mix: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME@VERSION=WEIGHT",
            help="Another environment to train on. Default: its latest version, with weight 1 (the weight of "
            "the run's own environment). Repeatable.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="A configuration file in YAML or JSON, as `run config` writes it."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run and its policy.")] = None,
    without_certificate: Annotated[
        str | None, typer.Option(help="Why to train on a version that has not passed its checks.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only run the pre-flight checks. Exits with 1 if they find a problem.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch/--no-wait", help="Show the progress of the run, or return at once.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Train a model with SFT, GRPO, or one after the other.

    Settings come from --set, else the file, else the preset, else the defaults. `--set list` and the launch page show
    all settings with their help. `--dry-run` checks the run before anything is queued: number of rollouts, memory, chat
    template, success rate of the policy, and duration.

    Ctrl-C leaves the run running. `proctor run watch` shows it again, `run stop` stops it, `run resume` resumes it.
    """
    client = connect()
    if preset == "list":
        _tell_presets(client.get("/training/presets"), as_json)
        return
    if choices == ["list"]:
        _tell_choices(client.get("/training/choices", preset=preset)["items"], as_json)
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
        fail(f"{path}: unknown {', '.join(unknown)}; known: {', '.join(sorted(FILE_FIELDS))}")
    return told


def _version(client: Client, environment: str | None, body: dict[str, Any]) -> str:
    """The argument overrides the environment of the file, and then the content hash of the file does not apply."""
    written = body.pop("environment", None)
    if environment and environment != written:
        body.pop("content_hash", None)
    wanted = environment or written
    if not wanted:
        fail("name the environment, or a --config file that names it")
    return str(version_of(client, str(wanted))["id"])


def _tell_presets(presets: dict[str, Any], as_json: bool) -> None:
    if as_json:
        write_json(presets)
        return
    for name, preset in presets.items():
        say(f"{name}: {preset['title']}", "bold")
        for label, field in (("", "about"), ("Use for: ", "suits"), ("Duration: ", "takes"), ("Results: ", "seen")):
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
    """Show each finding as it arrives. Without a worker, the checks that need one are skipped."""
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
        say(f"✗ The checks on a worker failed: {found['reason']}", "red")
    elif found["status"] not in OVER:
        say("No worker is online. Checks that need one were skipped.", "yellow")
    return BAD_RESULT if found["verdict"] == "problem" or found["status"] == "failed" else OK


def _has_worker(found: dict[str, Any]) -> bool:
    statuses = {finding["name"]: finding["status"] for finding in found["findings"]}
    return statuses.get("worker") == "ok" and statuses.get("choice") is None


def _tell_findings(findings: list[dict[str, Any]], told: dict[str, Any]) -> None:
    """Print the findings that are new or changed."""
    for finding in findings:
        if told.get(finding["name"]) == finding["sentence"]:
            continue
        told[finding["name"]] = finding["sentence"]
        mark, style = _MARKS[finding["status"]]
        advice = f" {finding['advice']}" if finding["advice"] else ""
        line = f"{mark} {finding['name'].replace('_', ' ')}: {finding['sentence']}{advice}"
        console().print(line, style=style, markup=False)


def configuration(run: RunName, as_json: AsJson = False) -> None:
    """Print the configuration of a training run: `proctor run config last > run.yaml`."""
    client = connect()
    written = client.get(f"/training/{run_of(client, run)['id']}/configuration")
    written = {name: value for name, value in written.items() if value is not None}
    if as_json:
        write_json(written)
    else:
        say(yaml.safe_dump(written, sort_keys=False, allow_unicode=True, width=100).rstrip())
