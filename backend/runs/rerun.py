"""Running an evaluation again: exactly as it was, or with something changed."""

import uuid
from typing import Any

from pydantic import BaseModel, ConfigDict
from sqlalchemy.orm import Session

from backend.domain.runs.plans import EvaluationPlan
from backend.domain.vocabulary import PolicyKind, RunKind
from backend.errors import Conflict, InvalidInput
from backend.policies.tables import Policy
from backend.runs.notes import Asker
from backend.runs.requests import EvaluationRequest
from backend.runs.starting import start_evaluation
from backend.runs.tables import Run
from backend.web.form_data import validate

WHICH_TASKS = frozenset({"split", "tasks", "first_task"})


class NotAnEvaluation(Conflict):
    """Only an evaluation can be run again."""


class AgainRequest(BaseModel):
    """What should differ; nothing: the same plan, seed, policy and version again."""

    model_config = ConfigDict(extra="forbid")

    changes: dict[str, Any] = {}
    """Fields of an evaluation's request, e.g. `{"temperature": 0, "group_size": 8}`."""
    key: str | None = None
    """Any text of the sender's; the same key again gives the run that it started first."""


def run_again(session: Session, actor: Asker, run: Run, asked: AgainRequest) -> Run:
    """Start the evaluation anew; the new run remembers which one it repeats."""
    if unknown := sorted(asked.changes.keys() - EvaluationRequest.model_fields.keys()):
        raise InvalidInput(fields=dict.fromkeys(unknown, "An evaluation has no such choice."))
    request = validate(EvaluationRequest, request_of(run) | _consequences(asked.changes) | {"key": asked.key})
    return start_like(session, actor, request, run)


def start_like(session: Session, actor: Asker, request: EvaluationRequest, source: Run | None) -> Run:
    """Start what was asked for; `source` is the run whose choices it began with."""
    run = start_evaluation(session, actor, request)
    if source is not None and run.id != source.id:
        run.source_run_id = source.id
    session.flush()
    return run


def request_of(run: Run) -> dict[str, Any]:
    """What one would ask for to get this run, every default written out."""
    if run.kind is not RunKind.EVALUATION or run.policy_id is None:
        raise NotAnEvaluation(f"This run is a {run.kind}; only an evaluation can be run again.")
    if run.policy is not None and run.policy.kind is PolicyKind.EXTERNAL:
        raise NotAnEvaluation("This run was imported; what played it is not here to play again.")
    plan = EvaluationPlan.model_validate(run.configuration)
    return {
        **plan.model_dump(exclude={"sampling", "task_indexes_given"}),
        **plan.sampling.model_dump(),
        "task_indexes": list(plan.task_indexes_given),
        "version_id": run.version_id,
        "policy_id": run.policy_id,
        "checkpoint_id": run.checkpoint_id,
        "seed": run.seed,
        "name": run.name,
    }


def drift(run: Run, policy: Policy | None) -> list[str]:
    """What of the policy is no longer as it was when the run was started: the names of its settings."""
    then = run.configuration.get("policy")
    if policy is None or not isinstance(then, dict):
        return []
    now = {"kind": str(policy.kind), **policy.configuration}
    return sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))


def _consequences(changes: dict[str, Any]) -> dict[str, Any]:
    """What else no longer holds: another policy has other checkpoints, other tasks are not the ones listed."""
    implied: dict[str, Any] = {"name": None} if changes.keys() - {"seed", "concurrency", "workers"} else {}
    if "policy_id" in changes:
        implied["checkpoint_id"] = None
    if changes.keys() & WHICH_TASKS:
        implied["task_indexes"] = []
    return implied | changes


def source_of(session: Session, run: Run) -> Run | None:
    """The run that this one repeats, re-scores, replays or branches off."""
    return session.get(Run, run.source_run_id) if isinstance(run.source_run_id, uuid.UUID) else None
