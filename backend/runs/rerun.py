"""Repeat an evaluation: exactly as it was, or with changes."""

from typing import Any

from pydantic import ConfigDict, Field
from sqlalchemy.orm import Session

from backend.domain.described import Described
from backend.domain.runs.plans import EvaluationPlan
from backend.domain.vocabulary import PolicyKind, RunKind
from backend.errors import Conflict, InvalidInput
from backend.policies.tables import Policy
from backend.runs.evaluations import start_evaluation
from backend.runs.schemas import EvaluationRequest
from backend.runs.tables import Run
from backend.web.audit import Requester
from backend.web.field_messages import validate

TASK_FIELDS = frozenset({"split", "tasks", "first_task"})
UNNAMED = frozenset({"seed", "concurrency", "workers"})
"""Changes that keep the run's name."""


class NotAnEvaluation(Conflict):
    """Only an evaluation can be run again."""


class RerunRequest(Described):
    """Changes of a repeated evaluation. Default: the same plan, seed, policy and version."""

    model_config = ConfigDict(extra="forbid")

    changes: dict[str, Any] = Field(default={})
    """Fields of an evaluation's request, such as `{"temperature": 0, "group_size": 8}`."""
    key: str | None = None
    """Any text. Repeating a key returns the run that it started first."""


def run_again(session: Session, actor: Requester, run: Run, request: RerunRequest) -> Run:
    """Start the evaluation again. The new run refers to this one.

    Another policy has other checkpoints, and other tasks replace listed ones.
    """
    changes = request.changes
    if unknown := sorted(changes.keys() - EvaluationRequest.model_fields.keys()):
        raise InvalidInput(fields=dict.fromkeys(unknown, "An evaluation has no such field."))
    if run.kind is not RunKind.EVALUATION or run.policy_id is None:
        raise NotAnEvaluation(f"This run is a {run.kind}; only an evaluation can be run again.")
    if run.policy is not None and run.policy.kind is PolicyKind.EXTERNAL:
        raise NotAnEvaluation("This run was imported, and the policy that played it is not available here.")
    plan = EvaluationPlan.model_validate(run.configuration)
    values: dict[str, Any] = {
        **plan.model_dump(exclude={"sampling", "task_indexes_given", "opponent"}),
        "opponent": plan.opponent.key if plan.opponent else None,
        **plan.sampling.model_dump(),
        "task_indexes": list(plan.task_indexes_given),
        "version_id": run.version_id,
        "policy_id": run.policy_id,
        "checkpoint_id": run.checkpoint_id,
        "seed": run.seed,
        "name": None if changes.keys() - UNNAMED else run.name,
    }
    if changes.keys() & {"policy_id", "policy"}:
        values |= {"policy_id": None, "checkpoint_id": None}
    if "environment" in changes:
        values["version_id"] = None
    if changes.keys() & TASK_FIELDS:
        values["task_indexes"] = []
    return start_like(session, actor, validate(EvaluationRequest, values | changes | {"key": request.key}), run)


def start_like(session: Session, actor: Requester, request: EvaluationRequest, source: Run | None) -> Run:
    """Start an evaluation whose form was filled in from the `source` run."""
    run = start_evaluation(session, actor, request)
    if source is not None and run.id != source.id:
        run.source_run_id = source.id
    session.flush()
    return run


def drift(run: Run, policy: Policy | None) -> list[str]:
    """Names of the policy's settings that changed since the run was started."""
    then = run.configuration.get("policy")
    if policy is None or not isinstance(then, dict):
        return []
    now = {"kind": str(policy.kind), **policy.configuration}
    return sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
