"""Run benchmarks and print one table each.

    python -m benchmarks                          # all of them, each in a separate process
    python -m benchmarks rollouts --repeats 5     # one of them
    python -m benchmarks graders --data FOLDER    # one that reads third-party collections
    python -m benchmarks --list
    python -m benchmarks --compare ../before      # all of them in this checkout and in another one, in alternation

The other checkout needs benchmark files with the same names. A comparison pairs their measures by name.
"""

import argparse
import ast
import importlib
import json
import logging
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog
from rich.console import Console
from rich.table import Table

from backend.settings import PROJECT_ROOT
from benchmarks.harness import Options, as_json, format_range, print_table

BENCHMARKS = (
    "sandbox",
    "rollouts",
    "regrading",
    "calibration",
    "detectors",
    "proxy_rewards",
    "false_alarms",
    "environments",
    "graders",
    "pages",
    "transcripts",
    "live",
    "startup",
    "training",
    "decoding",
    "ahead",
    "gpu",
)
NEED_DATA = {"graders"}
"""Benchmarks that need `--data`; without it, they run only by name and say so."""
ONLY_BY_NAME = {"gpu"}
"""Benchmarks that are not part of all: most of their parts need a machine with a GPU."""
LIMIT_SECONDS = 1800
"""Longest time of one benchmark that does not state its own."""
TOLERANCE = 0.05
"""A comparison reports a measure that is worse by a larger share in the median, and worse in every round."""

console = Console(width=None if sys.stdout.isatty() else 160)
Report = dict[str, Any]
"""A benchmark's measures and how long it took, as in the file of `--json`."""


def main() -> int:
    options = _options()
    names = options.names or [
        name for name in BENCHMARKS if name not in ONLY_BY_NAME and (options.data or name not in NEED_DATA)
    ]
    if options.list:
        for name in BENCHMARKS:
            console.print(f"{name:13} {summary_of(name)}", highlight=False)
        return 0
    if options.compare:
        return _compare(names, options.compare.resolve(), options)
    reports: dict[str, Report | None] = {}
    for name in names:
        if len(names) > 1:
            console.rule(name)
        reports[name] = _run(name, options) if len(names) == 1 else _run_in_child(name, options, PROJECT_ROOT)
    done = {name: report for name, report in reports.items() if report is not None}
    if options.json:
        options.json.write_text(json.dumps({"benchmarks": done}, indent=1))
    if failed := [name for name in names if name not in done]:
        console.print(f"failed: {', '.join(failed)}")
    missed = [name for name, report in done.items() if report["missed"]]
    return int(bool(failed) or (options.strict and bool(missed)))


def summary_of(name: str) -> str:
    """Return the first line of the benchmark's docstring, without importing it."""
    text = ast.get_docstring(ast.parse((Path(__file__).parent / f"{name}.py").read_text()))
    return (text or "").partition("\n")[0]


def _run(name: str, options: argparse.Namespace) -> Report:
    """Run a benchmark in this process and print its table."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    logging.disable(logging.WARNING)  # there is no Redis, so no job can send its wake-up
    module = importlib.import_module(f"benchmarks.{name}")
    began = time.perf_counter()
    signal.signal(signal.SIGALRM, _stop)
    limit = getattr(module, "LIMIT_SECONDS", LIMIT_SECONDS)
    signal.alarm(limit)
    repeats = options.repeats or (1 if options.quick else module.REPEATS)
    measures = list(module.measure(Options(repeats, options.quick, options.data)))
    signal.alarm(0)
    print_table(console, summary_of(name), measures)
    missed = [measure.name for measure in measures if measure.misses_target]
    return {"measures": as_json(measures), "missed": missed, "seconds": time.perf_counter() - began}


def _stop(*_: object) -> None:
    raise TimeoutError("the benchmark took longer than its limit")


def _run_in_child(name: str, options: argparse.Namespace, checkout: Path, *, is_silent: bool = False) -> Report | None:
    """Run a benchmark in the checkout's own interpreter. Returns None if it failed."""
    own = checkout / ".venv/bin/python"
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "report.json"
        command = [str(own if own.exists() else sys.executable), "-m", "benchmarks", name, "--json", str(target)]
        command += ["--quick"] if options.quick else []
        command += ["--repeats", str(options.repeats)] if options.repeats else []
        command += ["--data", str(options.data.resolve())] if options.data else []
        output = subprocess.DEVNULL if is_silent else None
        done = subprocess.run(command, cwd=checkout, stdout=output, check=False)
        if done.returncode or not target.exists():
            return None
        report: Report = json.loads(target.read_text())["benchmarks"][name]
        return report


def _compare(names: Sequence[str], before: Path, options: argparse.Namespace) -> int:
    """Run each benchmark in both checkouts, round by round and in changing order, and print the ratios."""
    worse = 0
    for name in names:
        rounds: list[dict[str, Report]] = []
        for number in range(options.rounds):
            order = {"before": before, "after": PROJECT_ROOT}
            sides = list(order.items())[:: -1 if number % 2 else 1]
            reports = {side: _run_in_child(name, options, path, is_silent=True) for side, path in sides}
            done = {side: report for side, report in reports.items() if report is not None}
            if len(done) < len(order):
                console.print(f"{name}: failed in round {number + 1}: {', '.join(sorted(set(order) - set(done)))}")
                return 1
            rounds.append(done)
        worse += _print_comparison(name, rounds)
    console.print(f"measures that are worse by more than {TOLERANCE:.0%}: {worse}")
    return int(worse > 0)


def _print_comparison(name: str, rounds: Sequence[dict[str, Report]]) -> int:
    """Print before, after and their ratio, paired by round. Returns the number of measures that got worse."""
    table = Table(title=f"{name}: {len(rounds)} rounds", title_justify="left", box=None, padding=(0, 3, 0, 0))
    for column in ("measure", "unit", "before", "after", "after / before", ""):
        table.add_column(column, justify="left" if column in {"measure", "unit"} else "right")
    sides: dict[str, list[dict[str, dict[str, Any]]]] = {
        side: [{measure["name"]: measure for measure in each[side]["measures"]} for each in rounds]
        for side in ("before", "after")
    }
    worse = 0
    for measure, first in sides["after"][0].items():
        if not all(measure in each for each in (*sides["before"], *sides["after"])):
            table.add_row(measure, first["unit"], "", "", "", "on one side only")
            continue
        before, after = ([float(each[measure]["median"]) for each in sides[side]] for side in ("before", "after"))
        ratios = [new / old if old else 1.0 for old, new in zip(before, after, strict=True)]
        losses = [1 - ratio if first["higher_is_better"] else ratio - 1 for ratio in ratios]
        loss, is_worse = statistics.median(losses), statistics.median(losses) > TOLERANCE and min(losses) > 0
        worse += is_worse
        note = f"{loss:.0%} worse" if is_worse else ""
        table.add_row(
            measure, first["unit"], format_range(before), format_range(after), f"{format_range(ratios)} ×", note
        )
    console.print(table)
    return worse


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks. Default: all")
    parser.add_argument("--list", action="store_true", help="list the benchmarks")
    parser.add_argument("--repeats", type=int, help="number of repeats. Default: the benchmark's own")
    parser.add_argument("--quick", action="store_true", help="use small sizes, to prove that a benchmark works")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="folder with third-party collections")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all values to this file")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--compare", type=Path, metavar="CHECKOUT", help="compare with another checkout")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of a comparison. Default: 3")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - set(BENCHMARKS)):
        parser.error(f"unknown benchmark: {', '.join(unknown)}. Choose from {', '.join(BENCHMARKS)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
