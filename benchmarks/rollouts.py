"""How many rollouts of a scripted policy are played and stored in a second, by one worker process.

    python -m benchmarks.rollouts [--tasks 3000] [--rounds 3] [--policy random] [--concurrency 64]

Prints one line a round: rollouts/s from the first episode to the last commit, and the CPU of this process (client,
engine and storage) a rollout. Then the write path alone beside a bare COPY of the same bytes.
"""

import argparse
import cProfile
import logging
import resource
import statistics
import sys
import uuid

import structlog
from rich.console import Console

from backend.core.session import transaction
from backend.domain.environments.manifest import Manifest
from backend.domain.runs.plans import EvaluationPlan
from backend.domain.vocabulary import RunKind, RunStatus
from backend.environments.library import load_package
from backend.environments.service import import_package
from backend.environments.tables import EnvironmentVersion
from backend.runs.tables import Run
from benchmarks.installation import installation
from benchmarks.storage import report_storage
from workers.policies.scripted import ScriptedPolicy
from workers.tasks.evaluations import evaluate

console = Console(soft_wrap=True)


def main() -> int:
    options = _options()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with installation():
        version = _import(options.environment)
        _play(version, options, tasks=50)  # the first one prepares the package
        rates = [_round(version, options) for _ in range(options.rounds)]
        console.print(
            f"median {statistics.median(rates):,.0f} rollouts/s stored ({options.environment}, {options.policy})"
        )
        if options.profile:
            profile = cProfile.Profile()
            profile.runcall(_play, version, options, tasks=options.tasks)
            profile.dump_stats(options.profile)
        report_storage(console, version)
    return 0


def _round(version: EnvironmentVersion, options: argparse.Namespace) -> float:
    before = _cpu_seconds()
    run = _play(version, options, tasks=options.tasks)
    cpu = _cpu_seconds() - before
    rate = float(run.summary["rollouts_per_second"])
    completed = run.summary["completed"]
    if completed != options.tasks:
        raise SystemExit(f"only {completed} of {options.tasks} rollouts completed: {run.reason}")
    console.print(
        f"{rate:,.0f} rollouts/s stored, {1000 * cpu / options.tasks:.2f} ms of CPU each in this process,"
        f" {run.summary['turns'] / options.tasks:.1f} turns, peak {_peak_mb():.0f} MB"
    )
    return rate


def _play(version: EnvironmentVersion, options: argparse.Namespace, *, tasks: int) -> Run:
    run_id = _add_run(version, EvaluationPlan(tasks=tasks, concurrency=options.concurrency))
    evaluate(run_id, ScriptedPolicy(options.policy))
    with transaction() as session:
        return session.get_one(Run, run_id)


def _import(environment: str) -> EnvironmentVersion:
    with transaction() as session:
        version = import_package(session, environment, load_package(environment))
        assert version is not None, "the database was empty"
        return version


def _add_run(version: EnvironmentVersion, plan: EvaluationPlan) -> uuid.UUID:
    manifest = Manifest.model_validate(version.manifest)
    run = Run(
        kind=RunKind.EVALUATION,
        status=RunStatus.QUEUED,
        name="benchmark",
        version_id=version.id,
        configuration=plan.model_dump(mode="json"),
        columns=manifest.column_names,
        weights=[column.weight for column in manifest.columns],
    )
    with transaction() as session:
        session.add(run)
    return run.id


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rollouts", description=__doc__.splitlines()[0])
    parser.add_argument("--environment", default="tictactoe")
    parser.add_argument("--policy", default="random")
    parser.add_argument("--tasks", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--profile", default="", help="write a cProfile of one more round to this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
