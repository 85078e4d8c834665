"""/evaluations/new: choose a policy, a version and tasks, see what it will take, and start."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, Response
from pydantic import BaseModel, ConfigDict
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.domain.graders.settings import GraderKind
from backend.domain.ids import new_id
from backend.domain.runs.plans import EvaluationPlan
from backend.domain.vocabulary import RunKind, Split
from backend.environments.tables import EnvironmentVersion
from backend.graders.tables import Grader
from backend.policies.queries import evaluable_policies
from backend.policies.tables import Policy
from backend.runs import queries
from backend.runs.estimates import Assurance, Outlook, assurance, outlook
from backend.runs.requests import EvaluationRequest
from backend.runs.rerun import AgainRequest, drift, run_again, start_like
from backend.runs.tables import Run
from backend.web.dependencies import Author, SessionDep
from backend.web.form_data import read_form
from backend.web.page import page, see_other

router = APIRouter()
TEMPLATE = "runs/new_evaluation.html"


@dataclass(frozen=True, slots=True)
class Before:
    """What one should know before starting."""

    policy: Policy | None = None
    outlook: Outlook | None = None
    assurance: Assurance | None = None


@dataclass(frozen=True, slots=True)
class NewEvaluationPage:
    """The form, blank or filled from an earlier run."""

    versions: Sequence[EnvironmentVersion]
    policies: Sequence[Policy]
    checkpoints: Sequence[Checkpoint]
    judges: Sequence[Grader]
    plan: EvaluationPlan
    key: str
    """Of this form: sending it twice starts one run."""
    before: Before
    version_id: uuid.UUID | None = None
    policy_id: uuid.UUID | None = None
    checkpoint_id: uuid.UUID | None = None
    seed: int = 0
    again: Run | None = None


class Prefill(BaseModel):
    """What a link to the form has chosen already."""

    model_config = ConfigDict(extra="ignore")

    again: uuid.UUID | None = None
    """A run to run again."""
    version_id: uuid.UUID | None = None
    policy_id: uuid.UUID | None = None
    checkpoint_id: uuid.UUID | None = None
    split: Split | None = None
    tasks: int | None = None
    first_task: int | None = None
    group_size: int | None = None


class EstimateQuery(BaseModel):
    """What stands in the form so far; it may be half filled."""

    model_config = ConfigDict(extra="ignore")

    version_id: str = ""
    policy_id: str = ""
    tasks: str = ""
    group_size: str = ""


class NewEvaluation(EvaluationRequest):
    """The form's answer."""

    again: uuid.UUID | None = None
    """The run whose choices it began with."""


@router.get("/evaluations/new", response_class=HTMLResponse)
def new_evaluation(
    request: Request, session: SessionDep, _: Author, wanted: Annotated[Prefill, Query()]
) -> HTMLResponse:
    return page(request, TEMPLATE, _form(session, wanted))


@router.get("/evaluations/estimate", response_class=HTMLResponse)
def estimate_evaluation(
    request: Request, session: SessionDep, _: Author, wanted: Annotated[EstimateQuery, Query()]
) -> HTMLResponse:
    """What the evaluation in the form will take."""
    rollouts = _number(wanted.tasks) * _number(wanted.group_size)
    before = _before(session, _id(wanted.policy_id), _id(wanted.version_id), rollouts)
    return page(request, "runs/_estimate.html", {"before": before})


@router.post("/evaluations", response_class=HTMLResponse)
def start_evaluation(
    session: SessionDep, actor: Author, form: Annotated[NewEvaluation, Depends(read_form(NewEvaluation))]
) -> Response:
    source = queries.get_run(session, form.again) if form.again else None
    run = start_like(session, actor, form, source)
    return see_other(f"/runs/{run.id}")


@router.post("/runs/{run_id}/again", response_class=HTMLResponse)
def start_again(run_id: uuid.UUID, session: SessionDep, actor: Author) -> Response:
    """Exactly as it was."""
    source = queries.get_run(session, run_id)
    run = run_again(session, actor, source, AgainRequest())
    changed = drift(source, source.policy)
    what = f" The policy is not as it was then: {', '.join(changed)} changed." if changed else ""
    return see_other(f"/runs/{run.id}", f"The same evaluation again.{what}")


def _form(session: Session, wanted: Prefill) -> NewEvaluationPage:
    again = queries.get_run(session, wanted.again) if wanted.again else None
    is_evaluation = again is not None and again.kind is RunKind.EVALUATION
    plan = _plan(again if is_evaluation else None, wanted)
    policy_id = wanted.policy_id or (again.policy_id if again else None)
    version_id = wanted.version_id or (again.version_id if again else None)
    keeps_checkpoint = again and is_evaluation and not wanted.policy_id
    is_judge = (Grader.kind == GraderKind.JUDGE, Grader.deleted_at.is_(None))
    return NewEvaluationPage(
        versions=queries.versions(session),
        policies=evaluable_policies(session),
        checkpoints=queries.checkpoints(session, has_weights=True)[::-1][:200],
        judges=session.scalars(select(Grader).where(*is_judge).order_by(Grader.name)).all(),
        plan=plan,
        key=new_id().hex,
        before=_before(session, policy_id, version_id, plan.rollouts),
        version_id=version_id,
        policy_id=policy_id,
        checkpoint_id=again.checkpoint_id if again and keeps_checkpoint else wanted.checkpoint_id,
        seed=again.seed if again and is_evaluation else 0,
        again=again,
    )


def _plan(again: Run | None, wanted: Prefill) -> EvaluationPlan:
    plan = EvaluationPlan.model_validate(again.configuration) if again else EvaluationPlan()
    named = {name: getattr(wanted, name) for name in ("split", "tasks", "first_task", "group_size")}
    chosen = {name: value for name, value in named.items() if value is not None}
    if chosen.keys() & {"split", "tasks", "first_task"}:
        chosen["task_indexes_given"] = ()
    return plan.model_copy(update=chosen)


def _before(session: Session, policy_id: uuid.UUID | None, version_id: uuid.UUID | None, rollouts: int) -> Before:
    policy = session.get(Policy, policy_id) if policy_id else None
    if version_id is None:
        return Before(policy)
    expected = outlook(session, policy, version_id, rollouts) if policy and rollouts > 0 else None
    return Before(policy, expected, assurance(session, version_id))


def _id(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 8 else 0
