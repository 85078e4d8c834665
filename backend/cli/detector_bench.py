"""`proctor detectors bench`: measure the detectors on labeled rollouts, without a server."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version as package_version
from pathlib import Path

import typer

import proctor_sandbox
from backend.cli.connection import connect
from backend.cli.names import split_pair
from backend.cli.output import BAD_RESULT, OK, fail, say, write_json, write_table
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
from backend.domain.statistics import Proportion
from proctor_sandbox.probe import run_on_inputs


def measure_sources(
    sources: Sequence[str], plugin_files: Sequence[Path], license: str, *, by_runs: bool, store: bool, as_json: bool
) -> None:
    """Measure on each source, then report, store if requested, and exit. Without sources: list them."""
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
    for path in plugin_files:
        try:
            plugins.append(SandboxedPlugin.of_file(path))
        except (OSError, ValueError) as error:
            fail(f"{path} cannot be read: {error}")
    results, benchmarks = [], []
    judge_programs = None
    if by_runs:
        try:
            proctor_sandbox.ensure_available()
        except proctor_sandbox.SandboxUnavailable as error:
            fail(f"programs run only in a sandbox: {error}")
        judge_programs = _judge_by_runs
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
            result = measure_source(source, files, judge_programs, plugins)
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
