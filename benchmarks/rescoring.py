"""How many stored rollouts are scored again in a second, stored in Postgres: by other weights, by another version.

    python -m benchmarks.rescoring [--rollouts 20000] [--rounds 3] [--environment arithmetic_ladder]

First the rollouts are played and stored. "Another version" pays other rewards in pure Python for the same tasks; its
rate counts from the first replayed reply to the last commit, the proof on the own version and the start of the
servers apart.
"""

import argparse
import logging
import os
import statistics
import sys
import time
import uuid
from collections.abc import Callable

import structlog
from rich.console import Console

from backend.core.session import transaction
from backend.domain.environments.manifest import Manifest
from backend.domain.environments.packages import content_hash
from backend.domain.rollouts.regrading import RescorePlan
from backend.domain.runs.plans import EvaluationPlan
from backend.domain.vocabulary import PolicyKind, RunKind, RunStatus, Split
from backend.environments.library import load_package
from backend.environments.service import import_package
from backend.environments.tables import EnvironmentVersion
from backend.policies.tables import Policy
from backend.rollouts.regrading.columns import candidates, weighed
from backend.rollouts.regrading.preview import preview
from backend.runs.tables import Run
from benchmarks.installation import installation
from workers.policies.scripted import ScriptedPolicy
from workers.tasks.evaluations import evaluate
from workers.tasks.registry import JobContext
from workers.tasks.regrading import run as carry_out

TARGET_PLAYED = 1000
TARGET_WEIGHED = 10_000
console = Console(soft_wrap=True)


def main() -> int:
    options = _options()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with installation():
        own, other = _versions(options.environment)
        source_id = _played(own, options.rollouts)
        _report_preview(source_id)
        weights = dict.fromkeys(_run(source_id).columns[:1], 0.5)
        rates = {
            "other weights": _rates(options.rounds, lambda: _copy_of(source_id, own, RescorePlan(weights=weights))),
            "another version's rewards": _rates(options.rounds, lambda: _copy_of(source_id, other, RescorePlan())),
        }
    for (what, rate), target in zip(rates.items(), (TARGET_WEIGHED, TARGET_PLAYED), strict=True):
        console.print(f"{what}: {rate:,.0f} rollouts/s stored (to reach: {target:,})")
    console.print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return 0


def _rates(rounds: int, make: Callable[[], Run]) -> float:
    """Median over the rounds."""
    found = []
    for _ in range(rounds):
        run = make()
        began = time.perf_counter()
        carry_out(JobContext(uuid.uuid4(), run.id, {}, 1))
        seconds = time.perf_counter() - began
        done = _run(run.id)
        if done.status is not RunStatus.COMPLETED:
            raise SystemExit(f"{done.status}: {done.reason}")
        rate = float(done.progress["rate"] or 0)
        count = done.summary["rescoring"]["total"]
        console.print(f"  {count:,} in {seconds:.1f} s with all preparation, {rate:,.0f}/s while scoring")
        found.append(rate)
    return statistics.median(found)


def _report_preview(source_id: uuid.UUID) -> None:
    with transaction() as session:
        run = session.get_one(Run, source_id)
        chosen = weighed(candidates(session, run), {run.columns[0]: 0.5})
        began = time.perf_counter()
        found = preview(session, run, chosen)
        seconds = time.perf_counter() - began
    console.print(f"preview of {found.rollouts:,} rollouts: {1000 * seconds:.0f} ms")


def _versions(name: str) -> tuple[EnvironmentVersion, EnvironmentVersion]:
    """The environment, and the same with every reward column halved."""
    with transaction() as session:
        own = import_package(session, name, load_package(name))
        assert own is not None, "the database was empty"
        files = dict(load_package(name))
        halved = files["server/rewards.py"].replace(
            "float(getattr(self, name)())", "0.5 * float(getattr(self, name)())"
        )
        assert halved != files["server/rewards.py"], "the package computes its columns otherwise"
        files["server/rewards.py"] = halved
        other = EnvironmentVersion(
            environment_id=own.environment_id,
            number=own.number + 1,
            files=files,
            content_hash=content_hash(files),
            manifest=own.manifest,
        )
        session.add(other)
    return own, other


def _played(version: EnvironmentVersion, rollouts: int) -> uuid.UUID:
    """Random play: replies that are all different."""
    plan = EvaluationPlan(tasks=rollouts, split=Split.TRAIN, concurrency=128)
    with transaction() as session:
        policy = Policy(name="random", kind=PolicyKind.SCRIPTED, configuration={"script": "random"})
        session.add(policy)
        session.flush()
        run = _row(version, RunKind.EVALUATION, plan.model_dump(mode="json"), None)
        run.policy_id = policy.id
        session.add(run)
    began = time.perf_counter()
    evaluate(run.id, ScriptedPolicy("random"))
    console.print(f"{rollouts:,} rollouts played and stored in {time.perf_counter() - began:.0f} s")
    return run.id


def _copy_of(source_id: uuid.UUID, version: EnvironmentVersion, plan: RescorePlan) -> Run:
    with transaction() as session:
        source = session.get_one(Run, source_id)
        configuration = plan.model_copy(update={"concurrency": 128}).model_dump(mode="json")
        run = _row(version, RunKind.RESCORE, configuration, source)
        run.columns, run.weights = source.columns, source.weights
        session.add(run)
    return run


def _row(version: EnvironmentVersion, kind: RunKind, configuration: dict[str, object], source: Run | None) -> Run:
    columns = Manifest.model_validate(version.manifest).columns
    return Run(
        kind=kind,
        status=RunStatus.QUEUED,
        name="benchmark",
        version_id=version.id,
        source_run_id=source.id if source else None,
        configuration=configuration,
        columns=[column.name for column in columns],
        weights=[column.weight for column in columns],
    )


def _run(run_id: uuid.UUID) -> Run:
    with transaction() as session:
        return session.get_one(Run, run_id)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rescoring", description=__doc__.splitlines()[0])
    parser.add_argument("--environment", default="arithmetic_ladder")
    parser.add_argument("--rollouts", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
