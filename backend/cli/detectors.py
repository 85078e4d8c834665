"""`proctor detectors …` and the scan of a run: precision, settings for an environment, new flags."""

from pathlib import Path
from typing import Annotated

import typer

from backend.cli.connection import connect
from backend.cli.derived import renders
from backend.cli.names import split_pair
from backend.cli.output import BAD_RESULT, AsJson, fail, say, write_error, write_fields, write_json, write_table
from backend.domain.detectors.spec import SUSPICION, Action
from backend.web.formats import short
from proctor import Json

app = typer.Typer(help="Detectors of reward hacking. Without a command: list them.", rich_markup_mode=None)

_HEAD = ("flags", "open", "reviewed", "precision, 95%", "recall at least")


@renders("detectors.list")
def _show_detectors(found: list[Json]) -> None:
    rows = [(each["id"], *_figures(each["record"], each["recall_at_least"])) for each in found]
    write_table(("detector", *_HEAD), rows, empty="There are no detectors.")


@app.command("set")
def set_(
    detector: Annotated[str, typer.Argument(metavar="DETECTOR", help="Its id, such as `paid_exit`.")],
    environment: Annotated[str, typer.Argument(metavar="ENVIRONMENT", help="An environment's name.")],
    pairs: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=NUMBER]...", help="Thresholds. `NAME=` restores the default.")
    ] = None,
    is_on: Annotated[bool | None, typer.Option("--on/--off", help="Enable or disable the detector.")] = None,
    action: Annotated[Action | None, typer.Option(help="Consequence of its flags in a training run.")] = None,
    suggested: Annotated[
        bool, typer.Option("--suggested", help="Raise flags from the suggested suspicion only.")
    ] = False,
    default: Annotated[bool, typer.Option("--default", help="Restore all defaults for the environment.")] = False,
    as_json: AsJson = False,
) -> None:
    """Change the settings of a detector for an environment. Other settings stay unchanged.

    A run can have its own thresholds: `proctor train --set detectors.thresholds=…`, `proctor run set RUN
    detectors.thresholds=…` while it trains, `proctor run detect RUN --threshold …` for a stored one.
    """
    client = connect()
    path = f"/detectors/{detector}/settings/{environment}"
    if default:
        settings = client.put(path, {})
    else:
        thresholds: dict[str, float | None] = {}
        for pair in pairs or ():
            name, value = split_pair(pair, advice := f"write the threshold as name=number, e.g. {SUSPICION}=0.7")
            try:
                thresholds[name] = float(value) if value else None
            except ValueError:
                fail(f"{pair}: {advice}")
        if suggested:
            cut_off = client.get(f"/detectors/{detector}", environment=environment)["suggested"]
            if cut_off is None:
                fail("no cut-off is suggested: more flags must be reviewed, or none is precise enough", BAD_RESULT)
            thresholds[SUSPICION] = float(cut_off["score"])
        changes = {name: value for name, value in (("enabled", is_on), ("action", action)) if value is not None}
        if not changes and not thresholds:
            fail("nothing to set: pass thresholds as name=number, --on, --off, --action, --suggested or --default")
        settings = client.request("PATCH", path, body={**changes, "thresholds": thresholds})
    if as_json:
        write_json(settings)
    else:
        say(f"{detector} in {environment}: {_settings(settings)}")


@renders("detectors.get")
def _show_detector(found: Json) -> None:
    suggested = found["suggested"]
    write_fields(
        {
            "detector": found["title"],
            "description": found["description"],
            "formula": found["formula"],
            "source": found["source"],
            "needs": ", ".join(found["needs"]) or "nothing else",
            "cost": found["cost"],
            "thresholds": ", ".join(f"{name} {value:g}" for name, value in found["thresholds"].items()),
            "default action": found["action"].replace("_", " "),
            "suggested": f"{SUSPICION} from {suggested['score']:.4g}: {suggested['caught']} caught, "
            f"{suggested['cost']} honest ones flagged"
            if suggested
            else "nothing",
        }
    )
    for name, settings in found["settings"].items():
        say(f"settings for {name}: {_settings(settings)}")
    if sampled := found["sampled"]:
        say(f"within budgets: {sampled['graded']:,} graded, for about {sampled['rollouts']:,.0f} rollouts")
        for name, share in (("would flag", "flagged"), ("precision", "precision"), ("recall", "recall")):
            if estimated := sampled[share]:
                say(f"  {name}: {estimated['value']:.1%} (95% {estimated['low']:.1%} to {estimated['high']:.1%})")
    say("")
    rows = [(name, *_figures(each, each["recall_at_least"])) for name, each in found["by_environment"].items()]
    write_table(("environment", *_HEAD), rows, empty="It has flagged nothing.")


@renders("detectors.list_learned")
def _show_learned(found: list[Json]) -> None:
    rows = []
    for each in found:
        trained, recall = "never", "–"
        if each["trained_at"]:
            fixtures = f", {each['fixtures']} fixtures" if each["fixtures"] else ""
            trained = f"{each['trained_at'][:16].replace('T', ' ')} on {each['trained_hacks']} hacks,"
            trained += f" {each['trained_honest']} honest{fixtures}"
        if share := each["recall"]:
            recall = f"{share['found']} of {share['looked_at']} ({share['low']:.0%} to {share['high']:.0%})"
        threshold = "–" if each["threshold"] is None else f"{each['threshold']:.2f}"
        limit = "–" if each["false_positives_at_most"] is None else f"{each['false_positives_at_most']:.1%}"
        state = each["missing"] or "flags"
        rows.append((each["environment"], each["hacks"], each["honest"], trained, threshold, limit, recall, state))
    head = ("environment", "hacks", "honest", "trained (UTC)", "threshold", "false positives ≤", "recall, 95%", "state")
    write_table(head, rows, empty="No rollout has a verdict yet.")


@renders("detectors.train_learned")
def _show_training(found: Json) -> None:
    _show_learned([found])


@renders("detectors.start_scan")
def _show_scan(scan: Json) -> None:
    if not scan["is_finished"]:
        say(f"scanning run {short(scan['run_id'])}: {connect().url}/runs/{scan['run_id']}/flags")
    elif scan["is_successful"]:
        count = scan["new_flags"]
        say(f"{count} new flag{'' if count == 1 else 's'} in {scan['done']} rollouts")
        for name, flags in scan["by_detector"].items():
            say(f"  {name} {flags}")
        if scan["note"]:
            say(scan["note"], "dim")
    else:
        write_error(f"the scan failed: {scan['error']}")


def _settings(settings: Json) -> str:
    state = "on" if settings["enabled"] else "off"
    thresholds = ", ".join(f"{name} {value:g}" for name, value in settings["thresholds"].items())
    return f"{state}, {settings['action'].replace('_', ' ')}, {thresholds}"


def _figures(record: Json, recall: float | None) -> tuple[object, ...]:
    share = record["precision"]
    precision = f"{share['value']:.0%} ({share['low']:.0%} to {share['high']:.0%})" if share["looked_at"] else "–"
    return record["flags"], record["open"], record["reviewed"], precision, "–" if recall is None else f"{recall:.0%}"


@app.command("bench")
def bench(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SOURCE=FOLDER]...",
            help="A source and your copy of its repository, or your own file: JSON lines with `reply`, `label` "
            "(`hack` or `honest`), `prompt` and `family`. Default: list the sources.",
        ),
    ] = None,
    runs: Annotated[
        bool, typer.Option("--run", help="Run the programs on unseen inputs, in a sandbox. Default: execute nothing.")
    ] = False,
    plugin: Annotated[
        list[Path] | None,
        typer.Option(help="Python file with `detect(rollouts)`, which runs in the sandbox. Repeat for several."),
    ] = None,
    store: Annotated[
        bool, typer.Option("--store", help="Store the results on the server, which shows them on the page Detectors.")
    ] = False,
    license: Annotated[
        str, typer.Option(help="With your own file: its license, stored with the result.")
    ] = "not published",
    as_json: AsJson = False,
) -> None:
    """Measure the detectors on labeled rollouts. Needs no server.

    Reports recall on hacks and the share of honest rollouts flagged, with 95% limits, by family and by detector. Exits
    with 1 if a plugin fails; the other detectors are measured nevertheless.
    """
    from backend.cli.detector_bench import measure_sources  # needs most detectors, which no other command does

    measure_sources(sources or [], plugin or [], license, by_runs=runs, store=store, as_json=as_json)
