"""Measure how fast stored rollouts are regraded: with other weights, and with another version's rewards.

Peer: none.
Units: rollouts/s stored in Postgres; ms of all processes' CPU per rollout; ms for the preview.
Repeats: 3.

Random play is stored first. The other version halves every reward column, so its rewards are computed again by
replaying the stored replies. That rate counts from the first replayed reply to the last commit,
without starting servers.
"""

import time
import uuid
from collections.abc import Iterator

from backend.core.session import transaction
from backend.domain.environments.packages import content_hash
from backend.domain.rollouts.regrading import RegradingPlan
from backend.domain.runs.plans import EvaluationPlan
from backend.domain.vocabulary import PolicyKind, RunKind, RunStatus, Split
from backend.environments.library import load_package
from backend.environments.tables import EnvironmentVersion
from backend.policies.tables import Policy
from backend.rollouts.regrading.weights import apply_weights, list_reward_terms, preview_weights
from backend.runs.tables import Run
from benchmarks.harness import Measure, Options, create_run, import_built_in, installation, tree_cpu_seconds
from workers.policies.scripted import ScriptedPolicy
from workers.tasks.evaluations import evaluate
from workers.tasks.registry import JobContext
from workers.tasks.regrading import run as regrade

REPEATS = 3
ENVIRONMENT = "arithmetic_ladder"
CONCURRENCY = 128


def measure(options: Options) -> Iterator[Measure]:
    count = options.size(20_000, 500)
    with installation():
        version = import_built_in(ENVIRONMENT)
        halved = _with_halved_rewards(version)
        source = _play(version, count)
        weights = dict.fromkeys(source.columns[:1], 0.5)
        previews = [_preview_seconds(source.id, weights) for _ in range(options.repeats)]
        yield Measure(f"preview of {count:,} rollouts", "ms", [1000 * seconds for seconds in previews])
        for name, target, graded, plan in (
            ("other weights", 10_000, version, RegradingPlan(weights=weights)),
            ("another version's rewards", 1000, halved, RegradingPlan()),
        ):
            rates, cpu = zip(*(_regrade(source, graded, plan) for _ in range(options.repeats)), strict=True)
            yield Measure(name, "rollouts/s", rates, higher_is_better=True, target=target)
            yield Measure(f"CPU, {name}", "ms/rollout", cpu)


def _with_halved_rewards(version: EnvironmentVersion) -> EnvironmentVersion:
    """Store another version of the environment."""
    files, path = dict(load_package(ENVIRONMENT)), "server/rewards.py"
    computed = "float(getattr(self, name)())"
    if computed not in files[path]:
        raise RuntimeError("the package computes its reward columns differently now")
    files[path] = files[path].replace(computed, f"0.5 * {computed}")
    other = EnvironmentVersion(
        environment_id=version.environment_id,
        number=version.number + 1,
        files=files,
        content_hash=content_hash(files),
        manifest=version.manifest,
    )
    with transaction() as session:
        session.add(other)
    return other


def _play(version: EnvironmentVersion, count: int) -> Run:
    """Store random play, whose replies all differ."""
    plan = EvaluationPlan(tasks=count, split=Split.TRAIN, concurrency=CONCURRENCY).model_dump(mode="json")
    with transaction() as session:
        policy = Policy(name="random", kind=PolicyKind.SCRIPTED, configuration={"script": "random"})
        session.add(policy)
    run = create_run(version, RunKind.EVALUATION, RunStatus.QUEUED, configuration=plan, policy_id=policy.id)
    evaluate(run.id, ScriptedPolicy("random"))
    return run


def _preview_seconds(run_id: uuid.UUID, weights: dict[str, float]) -> float:
    with transaction() as session:
        run = session.get_one(Run, run_id)
        columns = apply_weights(list_reward_terms(session, run), weights)
        began = time.perf_counter()
        preview_weights(session, run, columns)
        return time.perf_counter() - began


def _regrade(source: Run, version: EnvironmentVersion, plan: RegradingPlan) -> tuple[float, float]:
    """Regrade as a worker does. Returns the rate that the run reports, and all processes' CPU per rollout in ms."""
    configuration = plan.model_copy(update={"concurrency": CONCURRENCY}).model_dump(mode="json")
    run = create_run(version, RunKind.RESCORE, RunStatus.QUEUED, configuration=configuration, source_run_id=source.id)
    began, cpu = time.perf_counter(), tree_cpu_seconds()
    regrade(JobContext(uuid.uuid4(), run.id, {}, 1))
    seconds, cpu = time.perf_counter() - began, tree_cpu_seconds() - cpu
    with transaction() as session:
        done = session.get_one(Run, run.id)
    if done.status is not RunStatus.COMPLETED:
        raise RuntimeError(f"{done.status}: {done.reason}")
    total = int(done.progress["total"])
    rate = done.progress["rate"] or total / seconds  # a run of a moment reports none
    return float(rate), 1000 * cpu / total
