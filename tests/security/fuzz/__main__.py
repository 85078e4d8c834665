"""Fuzz each target in a separate process, so that a crash or a hang is seen and kept; one process a core."""

import argparse
import os
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.security.fuzz.engine import Failure, fuzz, scratch_file
from tests.security.fuzz.targets import TARGETS

MEMORY = 1 << 30
"""Bytes that a target may take beyond what it has at the start."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.security.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="time for each target")
    parser.add_argument("--target", choices=TARGETS, action="append", help="default: all targets")
    parser.add_argument("--seed", type=int, default=0, help="the same seed draws the same inputs")
    parser.add_argument("--current", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.current:
        return _run(given.target[0], given.seconds, given.seed, given.current)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        codes = list(pool.map(lambda name: _start(name, given.seconds, given.seed), given.target or TARGETS))
    return int(any(codes))


def _run(name: str, seconds: float, seed: int, current: Path) -> int:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    report = fuzz(TARGETS[name], seconds, seed, current)
    sys.stdout.write(f"{name}: {report.executions:,} executions, {len(report.failures)} failures\n")
    for failure in report.failures:
        sys.stdout.write(f"  {failure.reason}\n  kept in {failure.save()}\n")
    return int(bool(report.failures))


def _start(name: str, seconds: float, seed: int) -> int:
    current = scratch_file()
    command = [sys.executable, "-m", "tests.security.fuzz", "--target", name, "--seconds", str(seconds)]
    try:
        code = subprocess.run([*command, "--seed", str(seed), "--current", current], timeout=seconds + 1200).returncode
        ended = f"ended with {code}" if code not in {0, 1} else ""
    except subprocess.TimeoutExpired:
        code, ended = 1, "did not end"
    if ended:
        failure = Failure(name, current.read_bytes(), ended)
        sys.stdout.write(f"{name}: {ended}; its last input is kept in {failure.save()}\n")
    current.unlink(missing_ok=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
