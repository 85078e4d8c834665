"""Import foreign packages and print how far each one gets: `python -m scripts.import_survey FOLDER… [--write PAGE]`.

Each folder is a package or contains packages. Every package is imported, prepared, started and played, as an import
does it, on a separate env host. The table goes to standard output, or between the two marks of a page. Pass
requirements and variables that a package does not declare as `--add NAME:requirement` and
`--set NAME:VARIABLE=value`.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from backend.domain.environments.import_report import ImportReport
from backend.domain.environments.packages import PackageInvalid
from backend.domain.errors import RolloutError
from backend.environments.import_sources import read_tree
from backend.environments.imports import ImportOptions, inspect_package, probe_manifest
from backend.settings import PROJECT_ROOT
from workers.environments.client import EnvHost
from workers.environments.probing import play, start

BEGIN, END = "<!-- survey -->", "<!-- end of survey -->"
HEAD = "| package | kind | played | what it needed | sessions | seed | reward seen | columns | step | answer |"
_TOLD = ("names no `app`", "adapter", "from source")
RULE = "|---|---|---|---|---|---|---|---|---|---|"


@dataclass
class Entry:
    name: str
    kind: str
    report: ImportReport
    added: list[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--only", action="append", default=[], help="a package's name; may be given several times")
    parser.add_argument("--add", action="append", default=[], metavar="NAME:REQUIREMENT")
    parser.add_argument("--set", action="append", default=[], metavar="NAME:VARIABLE=VALUE")
    parser.add_argument("--data", type=Path, default=None, help="keeps virtual environments between two surveys")
    parser.add_argument("--write", type=Path, default=None, help="the page whose table is replaced")
    arguments = parser.parse_args()
    found, only = list(_packages(arguments.folders)), arguments.only
    packages = [folder for folder in found if not only or folder.name in only]
    with _env_host(arguments.data) as address:
        entries = asyncio.run(_survey(packages, address, arguments.add, arguments.set))
    table = "\n".join([HEAD, RULE, *(_line(entry) for entry in entries)])
    if arguments.write:
        text = arguments.write.read_text(encoding="utf-8")
        before, rest = text.split(BEGIN, 1)
        after = rest.split(END, 1)[1]
        arguments.write.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")
    else:
        sys.stdout.write(table + "\n")


def _packages(folders: list[Path]) -> Iterator[Path]:
    for folder in folders:
        if (folder / "openenv.yaml").exists() or (folder / "pyproject.toml").exists():
            yield folder
        else:
            yield from sorted(inner for inner in folder.iterdir() if inner.is_dir())


@contextmanager
def _env_host(data: Path | None) -> Iterator[str]:
    """Start an env host and yield its address when it answers."""
    with tempfile.TemporaryDirectory(prefix="survey-") as folder:
        home = (data or Path(folder)).absolute()
        home.mkdir(parents=True, exist_ok=True)
        socket = Path(folder) / "s"
        variables = {"PROCTOR_DATA": str(home), "PROCTOR_ENVHOST_URL": f"unix:{socket}"}
        process = subprocess.Popen(
            [sys.executable, "-m", "workers.environments.host"],
            cwd=PROJECT_ROOT,
            env={**os.environ, **variables},  # noqa: TID251
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            deadline = time.monotonic() + 60
            while not socket.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    sys.exit("the env host did not start")
                time.sleep(0.1)
            yield f"unix:{socket}"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(20)


async def _survey(packages: list[Path], address: str, add: list[str], put: list[str]) -> list[Entry]:
    entries = []
    async with EnvHost(address) as host:
        for folder in packages:
            began = time.monotonic()
            entry = await _look(host, folder, _told(add, folder.name), dict(_pairs(_told(put, folder.name))))
            entries.append(entry)
            outcome = "plays" if entry.report.starts else entry.report.why_not.strip().splitlines()[-1:]
            sys.stderr.write(f"{entry.name}: {outcome} ({time.monotonic() - began:.0f} s)\n")
    return entries


def _told(given: list[str], name: str) -> list[str]:
    return [value for owner, _, value in (entry.partition(":") for entry in given) if owner == name]


def _pairs(given: list[str]) -> Iterator[tuple[str, str]]:
    for entry in given:
        name, _, value = entry.partition("=")
        yield name, value


async def _look(host: EnvHost, folder: Path, requires: list[str], variables: dict[str, str]) -> Entry:
    added = [*requires, *(f"{name}={value}" for name, value in variables.items())]
    try:
        options = ImportOptions(requires=requires, variables=variables)
        ready, report = inspect_package(read_tree(folder), folder.name, options)
    except PackageInvalid as error:
        return Entry(folder.name, "–", ImportReport(why_not=str(error)), added)
    files = {**ready.files, "openenv.yaml": probe_manifest(ready.manifest)}
    try:
        await start(host, files, report)
        if report.starts:
            await play(host, files, report)
    except RolloutError as error:
        report.starts, report.why_not = False, str(error)
    return Entry(folder.name, str(ready.kind), report, added)


def _line(entry: Entry) -> str:
    report = entry.report
    if not report.starts:
        cells = ["no: " + _cut(_reason(report.why_not)), _needed(entry), "", "", "", "", "", ""]
    else:
        played = report.played
        refused = "resets, but no step is taken: " + _cut(_first(played.errors))
        verdict = f"{played.steps} steps" if played.steps else refused
        low, high = played.reward_lowest, played.reward_highest
        cells = [
            verdict,
            _needed(entry),
            str(report.sessions),
            str(report.seed),
            "none" if low is None or high is None else f"{low:.3g} to {high:.3g}",
            _columns(report),
            f"{played.step_milliseconds:.1f} ms",
            _answer(report),
        ]
    return "| " + " | ".join([f"`{entry.name}`", entry.kind.replace("_", " "), *cells]) + " |"


def _needed(entry: Entry) -> str:
    needed = ["own virtual environment" if entry.report.own_environment else "nothing"]
    if entry.added:
        needed.append("given by hand: " + ", ".join(f"`{added}`" for added in entry.added))
    needed += [note for note in entry.report.notes if any(word in note for word in _TOLD)]
    if entry.report.left_out:
        needed.append(f"{len(entry.report.left_out)} files left out")
    return _cut("; ".join(needed), 220)


def _columns(report: ImportReport) -> str:
    if report.adapter.get("columns"):
        return ", ".join(report.adapter["columns"])
    if report.columns:
        return ", ".join(report.columns)
    offered = [found.path for found in report.breakdowns if found.adds_up or "reward" in found.path]
    return "one number" + (f" (offers `{offered[0]}`)" if offered else "")


def _answer(report: ImportReport) -> str:
    if any(leak.in_observation for leak in report.leaks):
        return "in what the policy reads"
    return "in the state" if report.leaks else "not seen"


def _reason(text: str) -> str:
    """The line that says it: an error's own, else the last one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if "ResolutionImpossible" not in line]
    if lines and "does not speak" in lines[0]:
        return lines[0]
    told = [line for line in lines if "Error" in line or line.startswith("ERROR:") or "error:" in line]
    return (told or lines or ["unknown"])[-1]


def _first(errors: list[str]) -> str:
    return errors[0] if errors else "no reason given"


def _cut(text: str, limit: int = 160) -> str:
    plain = " ".join(text.split()).replace("|", "/")
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"


if __name__ == "__main__":
    main()
