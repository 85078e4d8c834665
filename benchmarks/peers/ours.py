"""One measurement of Proctor's engine in a process of its own: VERSION COUNT CONCURRENCY URL.

Prints {rollouts_per_second, cpu_ms, peak_mb, reward, errors} as JSON. Every rollout is stored in Postgres.
"""

import json
import logging
import resource
import sys
import time
import uuid
from typing import Any

import structlog

from backend.core.session import transaction
from backend.domain.environments.manifest import Manifest
from backend.domain.runs.plans import EvaluationPlan, Sampling
from backend.domain.vocabulary import RunKind, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.runs.tables import Run
from workers.policies.openai_api import Endpoint, OpenAiPolicy
from workers.tasks.evaluations import evaluate


def measure(version_id: uuid.UUID, count: int, concurrency: int, url: str) -> dict[str, Any]:
    play(version_id, 32, 32, url)  # warm
    cpu = time.process_time()
    run = play(version_id, count, concurrency, url)
    cpu = time.process_time() - cpu
    summary = run.summary
    return {
        "rollouts_per_second": float(summary["rollouts_per_second"]),
        "cpu_ms": 1000 * cpu / count,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "reward": summary["reward"]["mean"],
        "errors": count - summary["completed"],
    }


def play(version_id: uuid.UUID, count: int, concurrency: int, url: str) -> Run:
    run_id = add_run(version_id, EvaluationPlan(tasks=count, concurrency=concurrency))
    evaluate(run_id, OpenAiPolicy(Endpoint(url, "instant"), Sampling()))
    with transaction() as session:
        return session.get_one(Run, run_id)


def add_run(version_id: uuid.UUID, plan: EvaluationPlan) -> uuid.UUID:
    with transaction() as session:
        manifest = Manifest.model_validate(session.get_one(EnvironmentVersion, version_id).manifest)
        run = Run(
            kind=RunKind.EVALUATION,
            status=RunStatus.QUEUED,
            name="benchmark",
            version_id=version_id,
            configuration=plan.model_dump(mode="json"),
            columns=manifest.column_names,
            weights=[column.weight for column in manifest.columns],
        )
        session.add(run)
        session.flush()
        return run.id


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    version, count, concurrency, url = sys.argv[1:]
    sys.stdout.write(json.dumps(measure(uuid.UUID(version), int(count), int(concurrency), url)) + "\n")
