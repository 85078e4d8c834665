"""/evaluations/new: choose a policy, a version and tasks, and start."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, Response
from pydantic import BaseModel
from sqlalchemy.orm import Session

from backend.db.models import Checkpoint, EnvironmentVersion, Policy, Run
from backend.domain.ids import new_id
from backend.domain.plans import EvaluationPlan
from backend.domain.vocabulary import RunKind
from backend.evaluations import queries, service
from backend.evaluations.forms import EvaluationRequest
from backend.web.dependencies import Author, SessionDep
from backend.web.forms import read_form
from backend.web.pages import page, see_other

router = APIRouter()


@dataclass(frozen=True, slots=True)
class NewEvaluationPage:
    """The form, blank or filled from an earlier run."""

    versions: Sequence[EnvironmentVersion]
    policies: Sequence[Policy]
    checkpoints: Sequence[Checkpoint]
    plan: EvaluationPlan
    key: str
    """Of this form: sending it twice starts one run."""
    version_id: uuid.UUID | None = None
    policy_id: uuid.UUID | None = None
    checkpoint_id: uuid.UUID | None = None
    seed: int = 0
    again: Run | None = None


class Prefill(BaseModel):
    """What a link to the form has chosen already."""

    again: uuid.UUID | None = None
    """A run to run again."""
    version_id: uuid.UUID | None = None
    policy_id: uuid.UUID | None = None
    checkpoint_id: uuid.UUID | None = None


@router.get("/evaluations/new", response_class=HTMLResponse)
def new_evaluation(
    request: Request, session: SessionDep, _: Author, wanted: Annotated[Prefill, Query()]
) -> HTMLResponse:
    return page(request, "evaluations/new.html", _form(session, wanted))


@router.post("/evaluations", response_class=HTMLResponse)
def start_evaluation(
    session: SessionDep, actor: Author, form: Annotated[EvaluationRequest, Depends(read_form(EvaluationRequest))]
) -> Response:
    run = service.start_evaluation(session, actor, form)
    return see_other(f"/runs/{run.id}")


def _form(session: Session, wanted: Prefill) -> NewEvaluationPage:
    again = queries.get_run(session, wanted.again) if wanted.again else None
    is_evaluation = again is not None and again.kind is RunKind.EVALUATION
    versions = queries.versions(session)
    return NewEvaluationPage(
        versions=versions,
        policies=queries.evaluable_policies(session),
        checkpoints=queries.checkpoints(session)[::-1][:200],
        plan=EvaluationPlan.model_validate(again.configuration) if again and is_evaluation else EvaluationPlan(),
        key=new_id().hex,
        version_id=again.version_id if again else wanted.version_id,
        policy_id=wanted.policy_id or (again.policy_id if again else None),
        checkpoint_id=again.checkpoint_id if is_evaluation and again and not wanted.policy_id else wanted.checkpoint_id,
        seed=again.seed if again and is_evaluation else 0,
        again=again,
    )
