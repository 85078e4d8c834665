"""/evaluations/new: choose a policy, a version and tasks, estimate tokens, cost and time, and start."""

import math
import uuid
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, Response
from pydantic import BaseModel, ConfigDict, ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from backend.domain.graders.settings import GraderKind
from backend.domain.ids import new_id
from backend.domain.policies.prices import cost_of
from backend.domain.runs.plans import EvaluationPlan
from backend.domain.vocabulary import CheckStatus, PolicyKind, RunKind, RunStatus, Split
from backend.environments.tables import Certificate, EnvironmentVersion
from backend.graders.tables import Grader
from backend.operations.ids import parse_id
from backend.policies.queries import evaluable_policies
from backend.policies.tables import Policy
from backend.results.planning import expected_detectable
from backend.runs import queries
from backend.runs.rerun import RerunRequest, drift, run_again, start_like
from backend.runs.schemas import EvaluationRequest
from backend.runs.tables import Run
from backend.web.dependencies import ElsewhereAuthor, SessionDep
from backend.web.form_data import read_form
from backend.web.page import page, see_other

router = APIRouter()
TEMPLATE = "runs/new_evaluation.html"
READS_TOKENS = (PolicyKind.OPENAI_API, PolicyKind.LOCAL)


class Prefill(BaseModel):
    """Choices in a link to the form."""

    model_config = ConfigDict(extra="ignore")

    again: uuid.UUID | None = None
    """A run to repeat."""
    version_id: uuid.UUID | None = None
    policy_id: uuid.UUID | None = None
    checkpoint_id: uuid.UUID | None = None
    split: Split | None = None
    tasks: int | None = None
    first_task: int | None = None
    group_size: int | None = None


class NewEvaluation(EvaluationRequest):
    again: uuid.UUID | None = None
    """The run that the form was filled in from."""


@router.get("/evaluations/new", response_class=HTMLResponse)
def new_evaluation(
    request: Request, session: SessionDep, _: ElsewhereAuthor, wanted: Annotated[Prefill, Query()]
) -> HTMLResponse:
    again = queries.get_run(session, wanted.again) if wanted.again else None
    policy_id = wanted.policy_id or (again.policy_id if again else None)
    version_id = wanted.version_id or (again.version_id if again else None)
    checkpoint_id, seed, plan = wanted.checkpoint_id, 0, EvaluationPlan()
    if again is not None and again.kind is RunKind.EVALUATION:
        seed, plan = again.seed, EvaluationPlan.model_validate(again.configuration)
        if not wanted.policy_id:
            checkpoint_id = again.checkpoint_id
    named = {name: getattr(wanted, name) for name in ("split", "tasks", "first_task", "group_size")}
    chosen = {name: value for name, value in named.items() if value is not None}
    if chosen.keys() & {"split", "tasks", "first_task"}:
        chosen["task_indexes_given"] = ()
    plan = plan.model_copy(update=chosen)
    is_judge = (Grader.kind == GraderKind.JUDGE, Grader.deleted_at.is_(None))
    context = {
        "versions": queries.versions(session),
        "policies": evaluable_policies(session),
        "checkpoints": queries.checkpoints(session, has_weights=True)[::-1][:200],
        "judges": session.scalars(select(Grader).where(*is_judge).order_by(Grader.name)).all(),
        "plan": plan,
        "key": new_id().hex,  # sending the form twice starts one run
        "before": _estimate(session, policy_id, version_id, (plan.tasks, plan.group_size)),
        "version_id": version_id,
        "policy_id": policy_id,
        "checkpoint_id": checkpoint_id,
        "seed": seed,
        "again": again,
    }
    return page(request, TEMPLATE, context)


@router.get("/evaluations/estimate", response_class=HTMLResponse)
def estimate_evaluation(
    request: Request,
    session: SessionDep,
    _: ElsewhereAuthor,
    version_id: str = "",
    policy_id: str = "",
    tasks: str = "",
    group_size: str = "",
) -> HTMLResponse:
    """The form's current values may be incomplete."""
    amount, size = (int(text) if text.isdecimal() and len(text) < 8 else 0 for text in (tasks, group_size))
    before = _estimate(session, parse_id(policy_id), parse_id(version_id), (amount, size))
    return page(request, "runs/_estimate.html", {"before": before})


@router.post("/evaluations", response_class=HTMLResponse)
def start_evaluation(
    session: SessionDep, actor: ElsewhereAuthor, form: Annotated[NewEvaluation, Depends(read_form(NewEvaluation))]
) -> Response:
    source = queries.get_run(session, form.again) if form.again else None
    run = start_like(session, actor, form, source)
    return see_other(f"/runs/{run.id}")


@router.post("/runs/{run_id}/again", response_class=HTMLResponse)
def start_again(run_id: uuid.UUID, session: SessionDep, actor: ElsewhereAuthor) -> Response:
    """Repeat the evaluation without changes."""
    source = queries.get_run(session, run_id)
    run = run_again(session, actor, source, RerunRequest())
    changed = drift(source, source.policy)
    notice = f" The policy has changed since: {', '.join(changed)}." if changed else ""
    return see_other(f"/runs/{run.id}", f"The same evaluation was started again.{notice}")


def _estimate(
    session: Session, policy_id: uuid.UUID | None, version_id: uuid.UUID | None, size: tuple[int, int]
) -> dict[str, object]:
    """Return expected figures for (tasks, rollouts per task), and the certificate with its failures and warnings."""
    policy = session.get(Policy, policy_id) if policy_id else None
    with_environment = [joinedload(EnvironmentVersion.environment)]
    version = session.get(EnvironmentVersion, version_id, options=with_environment) if version_id else None
    newest = select(Certificate).where(Certificate.version_id == version_id)
    newest = newest.order_by(Certificate.created_at.desc(), Certificate.id.desc()).limit(1)
    certificate = session.scalars(newest).one_or_none() if version else None
    rollouts = math.prod(size)
    return {
        "policy": policy,
        "detects": expected_detectable(session, version.id, policy_id, *size) if version else None,
        "outlook": _outlook(session, policy, version.id, rollouts) if policy and version and rollouts > 0 else None,
        "version": version,
        "status": certificate.status if certificate else None,
        "wrong": [
            str(result.get("evidence") or result.get("check"))
            for result in (certificate.results if certificate else ())
            if result.get("status") in {CheckStatus.FAILED, CheckStatus.WARNED}
        ],
    }


def _outlook(session: Session, policy: Policy, version_id: uuid.UUID, rollouts: int) -> dict[str, object]:
    """Estimate from runs of the same policy on this version, else from those of other models on it."""
    price = policy.configuration.get("price")
    unknown = {"rollouts": rollouts, "has_price": bool(price), "basis": "", "cost": None, "seconds": None}
    earlier = (
        select(Run.summary)
        .join(Run.policy)
        .where(Run.kind == RunKind.EVALUATION, Run.status == RunStatus.COMPLETED, Run.version_id == version_id)
        .where(Run.summary["rollouts"].as_integer() > 0)
        .order_by(Run.created_at.desc())
        .limit(10)
    )
    same = session.scalars(earlier.where(Run.policy_id == policy.id)).all()
    known = same or session.scalars(earlier.where(Policy.kind.in_(READS_TOKENS))).all()
    played = sum(int(summary["rollouts"]) for summary in known)
    if not played:
        return unknown
    tokens_in, tokens_out = (
        sum(int(summary.get(name) or 0) for summary in known) / played * rollouts
        for name in ("tokens_in", "tokens_out")
    )
    rates = [summary["rollouts_per_second"] for summary in same if summary.get("rollouts_per_second")]
    basis = f"{len(same)} earlier runs of it" if len(same) > 1 else "an earlier run of it" if same else "other models"
    with suppress(ValidationError):  # a price that an older version stored
        unknown["cost"] = cost_of(price, round(tokens_in), round(tokens_out))
    return unknown | {
        "basis": f"{basis} on this version",
        "tokens_in": tokens_in,
        "tokens_out": tokens_out,
        "seconds": rollouts / rates[0] if rates else None,
    }
