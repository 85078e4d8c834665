"""`proctor detectors …` and the scan of a run: precision, settings for an environment, new flags."""

from pathlib import Path
from typing import Annotated

import typer

from backend.cli.connection import connect
from backend.cli.derived import renders
from backend.cli.names import split_pair
from backend.cli.output import BAD_RESULT, AsJson, fail, say, write_error, write_fields, write_json, write_table
from backend.domain.detectors.labeled import MAX_FILE_BYTES, SOURCES, SourceResult, SourceUnreadable, measure_source
from backend.domain.detectors.spec import SUSPICION, Action
from backend.domain.review.judged_curve import Proportion
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
    say("")
    rows = [(name, *_figures(each, each["recall_at_least"])) for name, each in found["by_environment"].items()]
    write_table(("environment", *_HEAD), rows, empty="It has flagged nothing.")


@renders("detectors.start_scan")
def _show_scan(scan: Json) -> None:
    if not scan["is_finished"]:
        say(f"scanning run {short(scan['run_id'])}: {connect().url}/runs/{scan['run_id']}/flags")
    elif scan["is_successful"]:
        count = scan["new_flags"]
        say(f"{count} new flag{'' if count == 1 else 's'} in {scan['done']} rollouts")
        for name, flags in scan["by_detector"].items():
            say(f"  {name} {flags}")
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
            metavar="[SOURCE=FOLDER]...", help="A source and your copy of its repository. Default: list them."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure the detectors on rollouts that other people labeled. Needs no server and executes nothing.

    Reports recall on hacks and the share of honest rollouts flagged, with 95% limits, by family and by detector.
    """
    if not sources:
        rows = [(each.id, each.title, each.split, each.license, each.url, each.commit) for each in SOURCES.values()]
        write_table(("source", "rollouts", "split", "license", "repository", "commit"), rows, empty="")
        say("\nClone a repository, check out its commit, and run: proctor detectors bench SOURCE=FOLDER", "dim")
        return
    pairs = [split_pair(each, "write it as source=folder") for each in sources]
    if unknown := [name for name, _ in pairs if name not in SOURCES]:
        fail(f"there is no source {', '.join(unknown)}; choose from {', '.join(SOURCES)}")
    results = []
    for name, folder in pairs:

        def read(file: str, folder: Path = Path(folder)) -> bytes:
            with (folder / file).open("rb") as opened:
                content = opened.read(MAX_FILE_BYTES + 1)
            if len(content) > MAX_FILE_BYTES:
                raise SourceUnreadable(f"{file} is larger than {MAX_FILE_BYTES >> 20} MB")
            return content

        try:
            results.append(measure_source(SOURCES[name], read))
        except OSError as error:
            advice = f"clone {SOURCES[name].url} and check out {SOURCES[name].commit}"
            fail(f"{name}: {error.filename} cannot be read ({error.strerror}); {advice}")
        except SourceUnreadable as error:
            fail(f"{name}: {error}")
    if as_json:
        write_json([_as_json(each) for each in results])
        return
    for result in results:
        _show_result(result)


def _as_json(result: SourceResult) -> dict[str, object]:
    def share(proportion: Proportion) -> dict[str, object]:
        return {"value": proportion.value, "low": proportion.low, "high": proportion.high, "of": proportion.looked_at}

    hacks, honest = (sorted(family for is_hack, family in result.totals if is_hack is kind) for kind in (True, False))
    return {
        "source": result.source.id,
        "split": result.source.split,
        "recall": share(result.share(is_hack=True)),
        "false_positives": share(result.share(is_hack=False)),
        "recall_by_family": {family: share(result.share(is_hack=True, family=family)) for family in hacks},
        "false_positives_by_family": {family: share(result.share(is_hack=False, family=family)) for family in honest},
        "flagged_by_detector": {
            name: {"hacks": found[True], "honest": found[False]} for name, found in sorted(result.by_detector.items())
        },
        "wrong_records": result.wrong_records,
        "cpu_seconds": round(result.seconds, 3),
    }


def _show_result(result: SourceResult) -> None:
    def line(proportion: Proportion) -> tuple[object, ...]:
        limits = f"{proportion.low:.1%} to {proportion.high:.1%}"
        return (
            proportion.looked_at,
            proportion.found,
            "–" if proportion.value is None else f"{proportion.value:.1%}",
            limits,
        )

    say(f"{result.source.id}: {result.source.title} ({result.source.split})", "bold")
    rows = [
        ("hacks" if is_hack else "honest", family, *line(result.share(is_hack=is_hack, family=family)))
        for is_hack, family in sorted(result.totals, key=lambda key: (not key[0], key[1]))
    ]
    rows += [(name, "all", *line(result.share(is_hack=name == "hacks"))) for name in ("hacks", "honest")]
    write_table(("", "family", "rollouts", "flagged", "share", "95%"), rows, empty="It has no rollouts.")
    rows = [(name, found[True], found[False]) for name, found in sorted(result.by_detector.items())]
    write_table(("detector", "hacks flagged", "honest flagged"), rows, empty="Nothing was flagged.")
    wrong = f"; {result.wrong_records} wrong records skipped" if result.wrong_records else ""
    say(f"{result.seconds:.1f} s of CPU for {result.totals.total():,} rollouts{wrong}\n", "dim")
