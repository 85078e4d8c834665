"""Baselines beside a comparison: what random-legal and constant actions reach on the same tasks."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from backend.db.models import Policy, Run
from backend.domain.plans import EvaluationPlan
from backend.domain.statistics import Estimate, estimate_of
from backend.domain.vocabulary import PolicyKind, RunStatus
from backend.errors import InvalidInput, NotFound
from backend.evaluations.forms import EvaluationRequest
from backend.evaluations.notes import Asker
from backend.evaluations.service import resume_run, start_evaluation

BASELINES = ("random", "constant")


@dataclass(frozen=True, slots=True)
class Baseline:
    """One baseline on the tasks of a comparison."""

    script: str
    run_id: uuid.UUID | None = None
    """None: nobody evaluated it on these tasks yet."""
    estimates: tuple[Estimate, ...] = ()
    """In the order of the run's columns, the reward last."""

    @property
    def reward(self) -> Estimate | None:
        return self.estimates[-1] if self.estimates else None


_NEWEST = text("""
WITH wanted AS (
    SELECT unnest(CAST(:tasks AS uuid[])) AS task_id
), candidate AS (
    SELECT r.id, p.configuration->>'script' AS script, r.created_at
    FROM runs r JOIN policies p ON p.id = r.policy_id
    WHERE r.kind = 'evaluation' AND r.status = 'completed' AND r.version_id = :version
      AND p.kind = 'scripted' AND p.configuration->>'script' = ANY(CAST(:scripts AS text[]))
    ORDER BY r.created_at DESC, r.id DESC LIMIT 50
), complete AS (
    SELECT c.id, c.script, c.created_at
    FROM candidate c JOIN groups g ON g.run_id = c.id JOIN wanted w ON w.task_id = g.task_id
    GROUP BY c.id, c.script, c.created_at HAVING count(DISTINCT g.task_id) = (SELECT count(*) FROM wanted)
), newest AS (
    SELECT DISTINCT ON (script) id, script FROM complete ORDER BY script, created_at DESC, id DESC
), mean AS (
    SELECT n.id, n.script, g.task_id, v.position, avg(v.value::float8) AS value
    FROM newest n JOIN groups g ON g.run_id = n.id JOIN wanted w ON w.task_id = g.task_id
    JOIN rollouts r ON r.group_id = g.id AND r.status = 'completed'
    CROSS JOIN LATERAL unnest(array_append(r.columns, r.reward)) WITH ORDINALITY AS v(value, position)
    GROUP BY 1, 2, 3, 4
)
SELECT id, script, position, avg(value) AS mean, coalesce(stddev_samp(value), 0) AS deviation, count(*) AS amount
FROM mean GROUP BY id, script, position ORDER BY script, position
""")


def baselines(session: Session, run: Run, task_ids: Sequence[uuid.UUID]) -> list[Baseline]:
    """The newest completed evaluation of each baseline that covers all these tasks; without a run where none does."""
    found: dict[str, tuple[uuid.UUID, list[Estimate]]] = {}
    if task_ids:
        parameters = {"tasks": list(task_ids), "version": run.version_id, "scripts": list(BASELINES)}
        for row in session.execute(_NEWEST, parameters):
            estimate = estimate_of(row.mean, row.deviation, row.amount)
            found.setdefault(row.script, (row.id, []))[1].append(estimate)
    return [
        Baseline(script, found[script][0], tuple(found[script][1])) if script in found else Baseline(script)
        for script in BASELINES
    ]


def start_baseline(session: Session, actor: Asker, run: Run, script: str) -> Run:
    """Evaluate a baseline on the tasks that a run played."""
    if script not in BASELINES:
        raise InvalidInput(fields={"script": f"A baseline is one of {', '.join(BASELINES)}."})
    policy = session.scalars(
        select(Policy).where(
            Policy.kind == PolicyKind.SCRIPTED,
            Policy.deleted_at.is_(None),
            Policy.configuration["script"].astext == script,
        )
    ).first()
    if policy is None:
        raise NotFound(f"There is no policy that plays the script `{script}`.")
    plan = tasks_of(run)
    request = EvaluationRequest(
        version_id=run.version_id,
        policy_id=policy.id,
        split=plan.split,
        tasks=plan.tasks,
        first_task=plan.first_task,
        group_size=plan.group_size,
        key=f"baseline-{script}-{run.id}",
    )
    started = start_evaluation(session, actor, request)
    if started.status in {RunStatus.STOPPED, RunStatus.PAUSED, RunStatus.FAILED}:
        resume_run(session, actor, started)
    return started


def tasks_of(run: Run) -> EvaluationPlan:
    """Which tasks a run's evaluation plays; of a training run its held-out tasks."""
    held_out = run.configuration.get("heldout")
    if isinstance(held_out, dict):
        return EvaluationPlan(tasks=held_out.get("tasks", 100), first_task=held_out.get("first_task", 0))
    return EvaluationPlan.model_validate(run.configuration)
