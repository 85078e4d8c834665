"""`proctor train`, `run config|alarms|answer|set|branch` and `data examples`: start and steer training runs."""

import shlex
import time
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated

import typer
import yaml

from backend.cli import runs
from backend.cli.connection import connect
from backend.cli.derived import renders, takes_request
from backend.cli.names import EnvironmentName, RunName, run_of, split_pair, version_of
from backend.cli.output import BAD_RESULT, OK, AsJson, NoWait, fail, group, say, write_fields, write_json, write_table
from backend.cli.renderers import write_finding
from backend.cli.runs import finish, nested
from backend.cli.watching import POLL_SECONDS
from backend.web.formats import short
from proctor import Client, Json

FILE_FIELDS = {"environment", "content_hash", "name", "without_certificate", "preset", "configuration"}

Choices = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting, such as grpo.learning_rate=2e-4. Repeatable."),
]

examples_app = group(help="Upload conversations for an SFT warm-up, and preview what a run would learn from.")


@takes_request("training.start", "name", "without_certificate")
def train(
    request: Json,
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
        presets = client.get("/training/presets")
        if as_json:
            return write_json(presets)
        for preset_name, each in presets.items():
            say(f"{preset_name}: {each['title']}", "bold")
            for label, field in (("", "about"), ("Use for: ", "suits"), ("Duration: ", "takes"), ("Results: ", "seen")):
                say(f"  {label}{each[field]}")
        return
    if choices == ["list"]:
        settings = client.get("/training/choices", preset=preset)["items"]
        if as_json:
            return write_json(settings)
        for section, group in groupby(settings, key=itemgetter("section")):
            say(section, "bold")
            for setting in group:
                values = f"  ({', '.join(setting['one_of'])})" if setting["one_of"] else ""
                say(f"  {setting['name']}={setting['default']}{values}", "cyan")
                say(f"      {setting['help']}")
        return
    file: dict[str, Json] = {}
    if config:
        try:
            file = yaml.safe_load(config.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            fail(f"{config} is neither YAML nor JSON: {error}")
        if not isinstance(file, dict) or not isinstance(file.get("configuration", {}), dict):
            fail(f"{config}: a configuration file is a mapping with `environment:` and `configuration:`")
        if unknown := sorted(map(str, file.keys() - FILE_FIELDS)):
            fail(f"{config}: unknown {', '.join(unknown)}; known: {', '.join(sorted(FILE_FIELDS))}")
    body = file | ({"preset": preset} if preset is not None else {}) | request
    mixed = [f"mix={','.join(mix)}"] if mix else []
    body["configuration"] = nested([*(choices or []), *mixed], file.get("configuration"))
    named = body.pop("environment", None)
    if environment and environment != named:  # then the content hash of the file does not apply
        body.pop("content_hash", None)
    if not (environment or named):
        fail("name the environment, or a --config file that names it")
    body["version_id"] = str(version_of(client, str(environment or named))["id"])
    if dry_run:
        raise typer.Exit(_preflight(client, body, as_json=as_json))
    started = client.post("/training", body)
    finish(client, client.get(f"/runs/{started['id']}"), no_wait=not watch, as_json=as_json)


def _preflight(client: Client, body: Json, *, as_json: bool) -> int:
    """Print each finding when it arrives or changes. Without a worker, checks that need one are skipped."""
    result = client.post("/training/preflight", body)
    if not as_json:
        say(result["arithmetic"], "bold")
    shown: dict[str, str] = {}
    while True:
        for finding in () if as_json else result["findings"]:
            if shown.get(finding["name"]) != finding["sentence"]:
                shown[finding["name"]] = finding["sentence"]
                write_finding(finding, finding["name"].replace("_", " "))
        statuses = {finding["name"]: finding["status"] for finding in result["findings"]}
        has_worker = statuses.get("worker") == "ok" and statuses.get("choice") is None
        if result["is_finished"] or not has_worker:
            break
        time.sleep(POLL_SECONDS)
        result = client.get(f"/training/preflight/{result['id']}")
    if as_json:
        write_json(result)
    elif result["status"] == "failed":
        say(f"✗ The checks on a worker failed: {result['reason']}", "red")
    elif not result["is_finished"]:
        say("No worker is online. Checks that need one were skipped.", "yellow")
    elif advice := result["advice"]:
        say(f"Recommendation: {advice['title']}", "bold")
        for line in (*advice["reasons"], *(f"measured: {each}" for each in advice["measured"])):
            say(f"  {line}")
        if advice["changes"]:
            say("  " + " ".join(f"--set {shlex.quote(f'{name}={value}')}" for name, value in advice["changes"].items()))
        elif advice["is_followed"]:
            say("  These settings follow the recommendation.")
    return BAD_RESULT if result["verdict"] == "problem" or result["status"] == "failed" else OK


@runs.app.command("config")
def configuration(run: RunName, as_json: AsJson = False) -> None:
    """Print the configuration of a training run: `proctor run config last > run.yaml`."""
    client = connect()
    stored = client.get(f"/training/{run_of(client, run)['id']}/configuration")
    stored = {name: value for name, value in stored.items() if value is not None}
    if as_json:
        write_json(stored)
    else:
        say(yaml.safe_dump(stored, sort_keys=False, allow_unicode=True, width=100).rstrip())


@runs.app.command("alarms")
def alarms(run: RunName, as_json: AsJson = False) -> None:
    """List the alarms of a training run, newest first. Exits with 1 while an alarm is open."""
    client = connect()
    found = client.get(f"/runs/{run_of(client, run)['id']}/alarms")
    items = found["items"]
    if as_json:
        write_json(found)
    else:
        rows = []
        for item in items:
            state = "open" if item["is_open"] else item["answer"] or "over"
            rows.append((short(item["id"]), item["title"], item["step"], item["sentence"], item["action"], state))
        write_table(("alarm", "", "step", "observation", "action", "state"), rows, empty="No alarms.")
    for item in items:
        if item["is_open"] and not as_json:
            say(f"\n{item['title']}. Likely cause: {item['cause']} Advice: {item['advice']}")
            say("answers: " + ", ".join(f"{each['answer']} ({each['label']})" for each in item["answers"]))
    if any(item["is_open"] for item in items):
        raise typer.Exit(BAD_RESULT)


@runs.app.command("answer")
@takes_request("training.answer_alarm", "version", "without_certificate")
def answer(
    run: RunName,
    alarm: Annotated[
        str, typer.Argument(metavar="ALARM", help="Id of the alarm, or its name for the newest unanswered one.")
    ],
    reply: Annotated[
        str,
        typer.Argument(metavar="ANSWER", help="An answer listed by `run alarms`, such as lower_rate, pause or stop."),
    ],
    request: Json,
    as_json: AsJson = False,
) -> None:
    """Answer an alarm of a training run."""
    client = connect()
    path = f"/runs/{run_of(client, run)['id']}/alarms"
    for item in client.get(path)["items"]:
        if item["id"].endswith(alarm) or (item["name"] == alarm and item["answer"] is None):
            break
    else:
        fail(f"there is no unanswered alarm {alarm!r} of this run; `proctor run alarms` shows them")
    answered = client.post(f"{path}/{item['id']}", request | {"answer": reply})
    if as_json:
        return write_json(answered)
    say(f"{answered['alarm']['title']}: {reply.replace('_', ' ')}")
    if answered["branch_run_id"]:
        say(f"run {short(answered['branch_run_id'])} continues: {client.url}/runs/{answered['branch_run_id']}")


@runs.app.command("set")
def set_(
    run: RunName,
    pairs: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE", help="Such as grpo.learning_rate=2e-4. Repeatable.")
    ] = None,
    undo: Annotated[str | None, typer.Option(help="Undo a change, by its id or the end of it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Change settings of a training run from its next step on. Without settings, list the current ones.

    Memory settings (grpo.micro_batches, hardware.gradient_checkpointing) change when the run is resumed. An empty value
    removes a limit: `budget.minutes=`.
    """
    client = connect()
    found = run_of(client, run)
    path = f"/runs/{found['id']}/settings"
    if pairs:
        changes = client.post(path, {"changes": _changes(pairs)})["items"]
    elif undo:
        ids = [change["id"] for change in client.get(path)["changes"] if change["id"].endswith(undo)]
        if not ids:
            fail(f"there is no change {undo!r} of this run; `proctor run set RUN` shows them")
        changes = client.post(f"{path}/{ids[0]}/undo")["items"]
    else:
        settings = client.get(path)
        if as_json:
            return write_json(settings)
        write_fields(settings["settings"])
        say("")
        rows = []
        for change in settings["changes"]:
            step = "pending" if change["step"] is None else change["step"]
            rows.append((short(change["id"]), change["name"], change["before"], change["after"], step))
        write_table(("change", "setting", "before", "after", "from step"), rows, empty="No changes yet.")
        return
    if as_json:
        return write_json(changes)
    if not changes:
        say("No change: the run already has these values.")
    from backend.domain.training.steering import when_used  # imports the whole configuration of training

    is_over = found["status"] not in ("queued", "running")
    for change in changes:
        say(f"{change['name']}: {change['before']} → {change['after']} {when_used(change['name'], is_over=is_over)}")


def _changes(pairs: list[str]) -> dict[str, str | None]:
    advice = "write name=value, such as grpo.learning_rate=2e-4"
    return {name: value or None for name, value in (split_pair(pair, advice) for pair in pairs)}


@runs.app.command("branch")
@takes_request("training.start_branch", "step", "version", "without_certificate")
def branch(
    run: RunName,
    request: Json,
    checkpoint: Annotated[str | None, typer.Option(help="Instead of the step: the id of the checkpoint.")] = None,
    choices: Choices = None,
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Start a run that continues from a checkpoint of a training run with the remaining steps."""
    client = connect()
    request |= {"checkpoint_id": checkpoint, "changes": _changes(choices or [])}
    started = client.post(f"/runs/{run_of(client, run)['id']}/branch", request)
    finish(client, client.get(f"/runs/{started['id']}"), no_wait=no_wait, as_json=as_json)


@renders("examples.add")
def show_added_examples(row: Json) -> None:
    show_examples(row)
    say(f"{connect().url}/training/examples/{row['id']}")
    say(f"To train on it: proctor train ENVIRONMENT --set sft.source=file --set sft.file={row['id']}")


@examples_app.command("preview")
@takes_request("examples.preview", "preset")
def preview_examples(
    environment: EnvironmentName, request: Json, choices: Choices = None, as_json: AsJson = False
) -> None:
    """Preview what a training run would learn from. Exits with 1 if a source has no examples."""
    client = connect()
    request |= {"version_id": version_of(client, environment)["id"], "configuration": nested(choices or [])}
    found = client.post("/training/examples/preview", request)
    if as_json:
        write_json(found)
    for source in () if as_json else found["sources"]:
        kind = "episodes to play" if source["source"] == "script" else "conversations"
        say(f"{source['source']}: {source['share']:.0%} of the examples, {source['available']:,} {kind}", "bold")
        if source["looked_at"]:
            write_fields({**_statistics(source["statistics"]), "token count": found["tokens_are"]})
        for warning in source["warnings"]:
            say(f"! {warning}", "yellow")
        _write_conversations(source["examples"][:1])
    raise typer.Exit(OK if all(source["available"] for source in found["sources"]) else BAD_RESULT)


@examples_app.command("pairs")
@takes_request("examples.preview_pairs", "preset")
def preview_pairs(
    environment: EnvironmentName, request: Json, choices: Choices = None, as_json: AsJson = False
) -> None:
    """Preview the pairs that preference training would learn from. Exits with 1 if there are too few."""
    client = connect()
    request |= {"version_id": version_of(client, environment)["id"], "configuration": nested(choices or [])}
    found = client.post("/training/pairs/preview", request)
    if as_json:
        write_json(found)
    else:
        counts = {f"pairs from {reason}": count for reason, count in found["by_reason"].items()}
        write_fields({**{name: found[name] for name in ("pairs", "tasks", "rollouts")}, **counts})
        for warning in found["warnings"]:
            say(f"! {warning}", "yellow")
        for each in found["examples"][:1]:
            say(f"{each['task']}, by {each['reason']}", "bold")
            for half in ("chosen", "rejected"):
                say(f"{half}, reward {each[f'{half}_reward']}:")
                _write_conversations([{"messages": each[half]}])
    raise typer.Exit(OK if found["found"] >= found["fewest"] else BAD_RESULT)


def _statistics(statistics: Json) -> dict[str, object]:
    reward = statistics["reward"]
    return {
        "conversations": f"{statistics['conversations']:,}",
        "replies": f"{statistics['replies']:,}",
        "learned": f"{statistics['understood']:.1%}" if statistics["understood"] is not None else None,
        "tokens": f"{statistics['tokens']:,}",
        "longest": f"{statistics['longest']:,}",
        "reward": f"{reward['mean']:.3f} ({reward['low']:.3f} to {reward['high']:.3f})" if reward else None,
        "tasks by level": statistics["tasks_by_level"] or None,
        "duplicates": f"{statistics['repeats']:,}, {statistics['near_repeats']:,} near duplicates",
        "system prompts": len(statistics["systems"]),
    }


def _write_conversations(examples: Json) -> None:
    for example in examples:
        for message in example["messages"]:
            say(f"[{message['role']}]", "dim")
            say(str(message["content"])[:2000])


@renders("examples.get")
def show_examples(row: Json) -> None:
    write_fields({"name": row["name"], "id": row["id"], **_statistics(row["statistics"])})
    _write_conversations(row.get("examples", ()))
