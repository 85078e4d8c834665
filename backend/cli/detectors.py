"""`proctor detectors …` and the scan of a run: precision, settings for an environment, new flags."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Annotated

import typer

import proctor_sandbox
from backend.cli.connection import connect
from backend.cli.derived import renders
from backend.cli.names import split_pair
from backend.cli.output import BAD_RESULT, OK, AsJson, fail, say, write_error, write_fields, write_json, write_table
from backend.detectors.plugins import SandboxedPlugin
from backend.domain.detectors.benchmark import PluginReport, SourceBenchmark
from backend.domain.detectors.catalogue import unseen_inputs
from backend.domain.detectors.catalogue.unseen_inputs import Judgment, Submission, judge, submission_of
from backend.domain.detectors.examples import ProgramAnswer
from backend.domain.detectors.labeled import (
    MAX_FILE_BYTES,
    SOURCES,
    LabeledSource,
    SourceResult,
    SourceUnreadable,
    measure_source,
    own_source,
)
from backend.domain.detectors.run_view import RolloutRow
from backend.domain.detectors.spec import SUSPICION, Action
from backend.domain.statistics import Proportion
from backend.web.formats import short
from proctor import Json
from proctor_sandbox.probe import run_on_inputs

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
    if not sources:
        rows = [(each.id, each.title, each.split, each.license, each.url, each.commit) for each in SOURCES.values()]
        write_table(("source", "rollouts", "split", "license", "repository", "commit"), rows, empty="")
        say("\nClone a repository, check out its commit, and run: proctor detectors bench SOURCE=FOLDER", "dim")
        return
    chosen: list[tuple[LabeledSource, Path]] = []
    for each in sources:
        if "=" not in each and (own := Path(each)).is_file():
            chosen.append((own_source(own.name, license), own.parent))
            continue
        name, place = split_pair(each, "write it as source=folder, or name a file of JSON lines")
        if name not in SOURCES:
            fail(f"there is no source {name}; choose from {', '.join(SOURCES)}")
        chosen.append((SOURCES[name], Path(place)))
    plugins = []
    for path in plugin or ():
        try:
            plugins.append(SandboxedPlugin.of_file(path))
        except (OSError, ValueError) as error:
            fail(f"{path} cannot be read: {error}")
    results, benchmarks = [], []
    by_runs = None
    if runs:
        try:
            proctor_sandbox.ensure_available()
        except proctor_sandbox.SandboxUnavailable as error:
            fail(f"programs run only in a sandbox: {error}")
        by_runs = _judge_by_runs
    for source, folder in chosen:

        def files(pattern: str, folder: Path = folder) -> Iterator[tuple[str, bytes]]:
            found = sorted(folder.glob(pattern)) if "*" in pattern else [folder / pattern]
            if not found:
                raise SourceUnreadable(f"{folder} has no {pattern}")
            for path in found:
                with path.open("rb") as opened:
                    content = opened.read(MAX_FILE_BYTES + 1)
                if len(content) > MAX_FILE_BYTES:
                    raise SourceUnreadable(f"{path.name} is larger than {MAX_FILE_BYTES >> 20} MB")
                yield path.relative_to(folder).as_posix(), content

        try:
            result = measure_source(source, files, by_runs, plugins)
        except OSError as error:
            advice = f"; clone {source.url} and check out {source.commit}" if source.url else ""
            fail(f"{source.id}: {error.filename} cannot be read ({error.strerror}){advice}")
        except SourceUnreadable as error:
            fail(f"{source.id}: {error}")
        results.append(result)
        reports = [
            PluginReport(name=each.name, problem=each.problem[:500], cpu_seconds=round(each.cpu_seconds, 3))
            for each in plugins
        ]
        benchmarks.append(SourceBenchmark.of(result, reports, package_version("proctor")))
    if store:
        connect().post("/detectors/benchmarks", {"results": [each.model_dump(mode="json") for each in benchmarks]})
    has_failed = any(report.problem for each in benchmarks for report in each.plugins)
    if as_json:
        pairs = zip(results, benchmarks, strict=True)
        write_json(
            [
                _as_json(result)
                | {"problems": stored.problems, "plugins": [each.model_dump() for each in stored.plugins]}
                for result, stored in pairs
            ]
        )
        raise typer.Exit(BAD_RESULT if has_failed else OK)
    for result, benchmark in zip(results, benchmarks, strict=True):
        _show_result(result)
        for problem in benchmark.problems:
            say(f"skipped {problem}", "yellow")
        for report in benchmark.plugins:
            if report.problem:
                say(f"{report.name} does not count: {report.problem}", "red")
            else:
                say(f"{report.name}: {report.cpu_seconds:.1f} s of CPU", "dim")
    if store:
        say(f"stored: {connect().url}/detectors")
    raise typer.Exit(BAD_RESULT if has_failed else OK)


def _judge_by_runs(rollouts: Sequence[tuple[RolloutRow, str]]) -> list[Judgment | None]:
    """Run each rollout's program, and its reference solution if there is one, on the same inputs."""

    def answers_of(source: str, submission: Submission) -> list[ProgramAnswer]:
        answers = run_on_inputs(source, submission.inputs, function=submission.task.function)
        return [ProgramAnswer(each.outcome, each.text) for each in answers]

    def judged(rollout: tuple[RolloutRow, str]) -> Judgment | None:
        row, reference = rollout
        submission = submission_of(row)
        if submission is None:
            return None
        try:
            known = answers_of(reference, submission) if reference else []
            return judge(
                submission, answers_of(submission.source, submission), unseen_inputs.SPEC.thresholds, reference=known
            )
        except proctor_sandbox.SandboxFailed:  # of this program; the others run
            return None

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(judged, rollouts))


def _as_json(result: SourceResult) -> dict[str, object]:
    def share(proportion: Proportion) -> dict[str, object]:
        return {"value": proportion.value, "low": proportion.low, "high": proportion.high, "of": proportion.looked_at}

    hacks, honest = (sorted(family for is_hack, family in result.totals if is_hack is kind) for kind in (True, False))
    return {
        "source": result.source.id,
        "recall": share(result.share(is_hack=True)),
        "false_positives": share(result.share(is_hack=False)),
        "splits": {
            split: {
                "recall": share(result.share(is_hack=True, split=split)),
                "false_positives": share(result.share(is_hack=False, split=split)),
                "flagged_by_detector": {
                    name: {
                        "hacks": result.share(is_hack=True, split=split, detector=name).found,
                        "honest": result.share(is_hack=False, split=split, detector=name).found,
                    }
                    for name in sorted(result.by_detector)
                },
            }
            for split in result.splits
        },
        "recall_by_family": {family: share(result.share(is_hack=True, family=family)) for family in hacks},
        "false_positives_by_family": {family: share(result.share(is_hack=False, family=family)) for family in honest},
        "wrong_records": result.wrong_records,
        "verdicts": dict(result.verdicts),
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

    source = result.source
    say(f"{source.id}: {source.title}", "bold")
    rows = [
        (
            source.split_of(family),
            "hacks" if is_hack else "honest",
            family,
            *line(result.share(is_hack=is_hack, family=family)),
        )
        for is_hack, family in sorted(result.totals, key=lambda key: (source.split_of(key[1]), not key[0], key[1]))
    ]
    for split in result.splits:
        rows += [
            (split, name, "all", *line(result.share(is_hack=name == "hacks", split=split)))
            for name in ("hacks", "honest")
        ]
    write_table(("split", "", "family", "rollouts", "flagged", "share", "95%"), rows, empty="It has no rollouts.")
    rows = [
        (
            split,
            name,
            *(
                found
                for is_hack in (True, False)
                for found in line(result.share(is_hack=is_hack, split=split, detector=name))[1:]
            ),
        )
        for split in result.splits
        for name in sorted(result.by_detector)
    ]
    head = ("split", "detector", "hacks flagged", "share", "95%", "honest flagged", "share", "95%")
    write_table(head, rows, empty="Nothing was flagged.")
    total = max(result.totals.total(), 1)
    wrong = f"; {result.wrong_records} wrong records skipped" if result.wrong_records else ""
    cost = f"{result.seconds:.1f} s of CPU for {total:,} rollouts, {1000 * result.seconds / total:.2f} ms each"
    ran = "".join(f", {count} {verdict}" for verdict, count in sorted(result.verdicts.items()))
    say(f"{cost}{wrong}{f'; programs{ran}' if ran else ''}\n".replace("programs,", "programs judged by runs:"), "dim")
