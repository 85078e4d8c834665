"""How fast the detectors look at stored rollouts, how many played hacks they catch, and how often they are wrong.

    python -m benchmarks.detectors [--rollouts 100000] [--processes 2]
    python -m benchmarks.detectors --proof [--seed 1] [--only HACK …] [--keep FILE]
    python -m benchmarks.detectors --trained [ENVIRONMENT …] [--seed 1] [--steps 60]
    python -m benchmarks.detectors --honest URL [URL …]

Speed: rollouts that scripts played are stored in Postgres again and again, half of them as evaluations and half as
training runs of 100 steps; then every detector looks at all of it, as the job of a worker does it.
Proof: for each hack one rollout in ten hacks and nine are honest, all of them really played.
Trained: small models that really learn the holes of `silver_words` and `sloppy_guess`; flags against what these paid.
Honest: the training runs in these databases, which nobody hacked; nothing is written there.
"""

import argparse
import asyncio
import itertools
import logging
import os
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import structlog
from rich.console import Console
from sqlalchemy import func, select

from backend.core.session import transaction
from backend.detectors.tables import Flag
from backend.domain.ids import new_id
from backend.domain.rollouts.rollout import Rollout as Played
from backend.domain.vocabulary import Phase, RunKind
from backend.environments.library import load_package
from backend.environments.service import import_package
from backend.environments.tables import EnvironmentVersion
from backend.rollouts.tables import Rollout
from benchmarks.detectors_hacks import ByChance, honest
from benchmarks.detectors_honest import look_at_databases
from benchmarks.detectors_proof import prove
from benchmarks.detectors_trained import HACKABLE, learn_and_look
from benchmarks.installation import installation
from benchmarks.played import completed_run, play_version
from workers.storage.recorder import RunRecorder
from workers.tasks.detectors import run as look
from workers.tasks.registry import JobContext

ENVIRONMENTS = ("arithmetic_ladder", "tictactoe", "silver_words", "support_triage", "sloppy_guess")
PLAYED = 400
"""Of each environment; the rest are copies of these."""
STEPS, BATCH, GROUP_SIZE = 100, 2000, 4
TARGET_SECONDS = 120.0
console = Console(soft_wrap=True)


def main() -> int:
    options = _options()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    if options.honest:
        return 0 if look_at_databases(options.honest) else 1
    if options.proof and options.keep and options.keep.exists():
        return 0 if prove(options.seed, options.only, options.keep) else 1
    with installation():
        if options.proof:
            return 0 if prove(options.seed, options.only, options.keep) else 1
        if options.trained is not None:
            return 0 if learn_and_look(options.trained or list(HACKABLE), options.seed, options.steps) else 1
        return 0 if _measure(options.rollouts, options.processes) else 1


def _measure(count: int, processes: int) -> bool:
    kinds = [RunKind.EVALUATION, RunKind.TRAINING]
    each = count // (len(ENVIRONMENTS) * len(kinds))
    began = time.perf_counter()
    runs = [_stored(name, kind, each, played) for name, played in _played_all() for kind in kinds]
    console.print(f"{each * len(runs):,} rollouts stored in {time.perf_counter() - began:.0f} s")
    began = time.perf_counter()
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        cpu = sum(pool.map(_look, runs))
    seconds = time.perf_counter() - began
    with transaction() as session:
        stored = session.scalar(select(func.count()).select_from(Rollout)) or 0
        flags = session.scalar(select(func.count()).select_from(Flag)) or 0
    console.print(
        f"{stored:,} stored rollouts looked at in {seconds:.1f} s by {processes} processes ({cpu:.1f} s of their CPU,"
        f" {1000 * cpu / stored:.2f} ms each), {flags:,} flags; to reach: {TARGET_SECONDS:.0f} s for 100,000"
    )
    console.print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return seconds * 100_000 / stored <= TARGET_SECONDS


def _look(run_id: uuid.UUID) -> float:
    """In a process of its own: the job. Returns its CPU time."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    began = time.process_time()
    look(JobContext(new_id(), run_id, {}, 1))
    return time.process_time() - began


def _played_all() -> Iterator[tuple[EnvironmentVersion, list[Played]]]:
    for name in ENVIRONMENTS:
        with transaction() as session:
            version = import_package(session, name, load_package(name))
            assert version is not None, "the database was empty"
        yield version, asyncio.run(play_version(version, ByChance(honest, 0), PLAYED))


def _stored(version: EnvironmentVersion, kind: RunKind, count: int, played: list[Played]) -> uuid.UUID:
    """A run with so many copies, each of a task and a group of its own."""
    run = completed_run(version, kind)
    recorder = RunRecorder(run.id)
    phase = Phase.TRAIN if kind is RunKind.TRAINING else Phase.EVALUATION
    copies = (_copy(played[number % len(played)], number, count, phase) for number in range(count))
    while batch := list(itertools.islice(copies, BATCH)):
        recorder.store(batch)
    return run.id


def _copy(rollout: Played, number: int, count: int, phase: Phase) -> Played:
    step = 1 + number * STEPS // count if phase is Phase.TRAIN else None
    group, member = divmod(number, GROUP_SIZE)
    return replace(rollout, phase=phase, group=group, member=member, training_step=step)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.detectors", description=__doc__.splitlines()[0])
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--proof", action="store_true", help="catch hacks instead of measuring the speed")
    trained = "train a model on each of these hackable rewards (all), every detector on"
    parser.add_argument("--trained", nargs="*", choices=list(HACKABLE), metavar="ENVIRONMENT", help=trained)
    parser.add_argument("--steps", type=int, default=60, help="of GRPO, of the trained one")
    parser.add_argument("--honest", nargs="*", default=[], help="addresses of databases with honest training runs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a file for what was played: judged again from there, if it exists")
    parser.add_argument("--only", nargs="*", default=[], help="of these hacks")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
