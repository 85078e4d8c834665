"""Proctor's engine beside verifiers 0.3.1: same machine, same endpoint, equal environments, turn about.

    python -m benchmarks.against_verifiers [--rounds 3]

verifiers plays in its own process and stores nothing; Proctor plays through its env host and stores every rollout in
Postgres. Prints rollouts/s with the ratio of the medians, CPU of a model call beside the openai client, and the
worker's peak memory at 2,000 and at 20,000 rollouts. The first time it installs verifiers under build/peers.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from backend.core.session import transaction
from backend.environments.service import import_package
from backend.settings import PROJECT_ROOT
from benchmarks.installation import installation
from benchmarks.peers.packages import peer_package

VERIFIERS = "0.3.1"
ENVIRONMENTS = Path(__file__).parent / "peers" / "verifiers_environments"
LONG = 20_000

console = Console(soft_wrap=True)


@dataclass(frozen=True)
class Contest:
    """One kind of episode, played by both."""

    package: str
    count: int
    concurrency: int
    wanted: float
    """Ratio to reach."""

    @property
    def title(self) -> str:
        return f"{self.package.replace('_', ' ')}, {self.count:,} at {self.concurrency}"


CONTESTS = (Contest("one_turn", 2000, 64, 4.0), Contest("five_turns", 500, 64, 4.0))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.against_verifiers", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    python = peer_python()
    table = Table("", "peer", "Proctor", "ratio", "wanted", title="Proctor beside verifiers and the openai client")
    with installation(), instant_endpoint() as url:
        versions = {contest.package: add_package(contest.package) for contest in CONTESTS}
        for contest in CONTESTS:
            theirs, ours = contest_rounds(contest, rounds, python, versions[contest.package], url)
            rate = ratio(ours["rollouts_per_second"], theirs["rollouts_per_second"])
            table.add_row(f"rollouts/s: {contest.title}", *rate, f"≥ {contest.wanted:g} ×")
            cpu = ratio(ours["cpu_ms"], theirs["cpu_ms"])
            table.add_row("  CPU ms a rollout, this process", *cpu, "")
            table.add_row("  peak MB", *ratio(ours["peak_mb"], theirs["peak_mb"]), "")
        table.add_row("CPU ms a model call", *call_cpu(rounds, url), "≤ 0.6 ms")
        long = play(ours_command(versions["one_turn"], LONG, 64, url))
        table.add_row(f"peak MB at {LONG:,} rollouts", "", f"{long['peak_mb']:.0f}", "", "≤ 250 MB")
    console.print(table)
    return 0


def contest_rounds(
    contest: Contest, rounds: int, python: Path, version: str, url: str
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Figures of each round by name: the peer's and ours."""
    theirs: dict[str, list[float]] = {}
    ours: dict[str, list[float]] = {}
    peer = [str(python), str(ENVIRONMENTS / "play.py"), f"peer_{contest.package}"]
    for _ in range(rounds):
        for figures, command in (
            (theirs, [*peer, str(contest.count), str(contest.concurrency), url]),
            (ours, ours_command(version, contest.count, contest.concurrency, url)),
        ):
            for name, value in play(command).items():
                figures.setdefault(name, []).append(value)
    if sum(theirs["errors"]) or sum(ours["errors"]):
        raise SystemExit(f"rollouts failed: peer {theirs['errors']}, Proctor {ours['errors']}")
    console.print(f"{contest.title}: mean reward {theirs['reward'][0]:.3f} and {ours['reward'][0]:.3f}")
    return theirs, ours


def ours_command(version: str, count: int, concurrency: int, url: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.peers.ours", version, str(count), str(concurrency), url]


def play(command: list[str]) -> dict[str, Any]:
    return dict(json.loads(output_of(command)))


def call_cpu(rounds: int, url: str) -> tuple[str, str, str]:
    seen: dict[str, list[float]] = {"openai": [], "ours": []}
    for _ in range(rounds):
        for which, values in seen.items():
            command = [sys.executable, "-m", "benchmarks.peers.calls", which, "3000", url]
            values.append(float(output_of(command)))
    return ratio(seen["ours"], seen["openai"])


def ratio(ours: list[float], theirs: list[float]) -> tuple[str, str, str]:
    """The peer's and our median with their extremes, and the ratio of the medians."""

    def told(values: list[float]) -> str:
        digits = 2 if max(values) < 10 else 0
        low, middle, high = (f"{value:,.{digits}f}" for value in (min(values), statistics.median(values), max(values)))
        return f"{middle} ({low}–{high})"

    return told(theirs), told(ours), f"{statistics.median(ours) / statistics.median(theirs):.2f} ×"


def add_package(name: str) -> str:
    with transaction() as session:
        version = import_package(session, name, peer_package(name))
        assert version is not None, "the database was empty"
        return str(version.id)


def output_of(command: list[str]) -> str:
    """The last line that a program prints."""
    chosen = {"PYTHONPATH": f"{PROJECT_ROOT}{os.pathsep}{ENVIRONMENTS}", "PYTHONWARNINGS": "ignore"}
    offline = {"PEER_KEY": "none", "HF_HUB_OFFLINE": "1"}
    environment = {**os.environ, **chosen, **offline}  # noqa: TID251 - a child's
    done = subprocess.run(command, cwd=PROJECT_ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout.strip():
        raise SystemExit(f"{' '.join(command[:3])} failed:\n{done.stderr[-3000:]}")
    return done.stdout.strip().splitlines()[-1]


@contextmanager
def instant_endpoint() -> Iterator[str]:
    """Address of an endpoint in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.peers.endpoint"]
    with subprocess.Popen(command, cwd=PROJECT_ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def peer_python() -> Path:
    """The interpreter of verifiers' own virtual environment, made the first time: its pins conflict with ours."""
    folder = PROJECT_ROOT / "build" / "peers" / f"verifiers-{VERIFIERS}"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        console.print(f"installing verifiers {VERIFIERS} into {folder.relative_to(PROJECT_ROOT)}")
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-qq", f"verifiers=={VERIFIERS}", "uvloop"], check=True)
        (folder / "ready").touch()
    return python


if __name__ == "__main__":
    sys.exit(main())
