"""/policies: what can act; adding and deleting."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response

from backend.db.models import Checkpoint, Policy, Run
from backend.evaluations import queries, service
from backend.evaluations.forms import PolicyRequest
from backend.evaluations.policies import SCRIPTED
from backend.web.dependencies import SessionDep, Trainer, Viewer
from backend.web.forms import read_form
from backend.web.pages import page, see_other
from backend.web.paging import After

router = APIRouter()


@dataclass(frozen=True, slots=True)
class PoliciesPage:
    """All policies by name, with how many runs each has."""

    policies: Sequence[Policy]
    run_counts: dict[uuid.UUID, int]
    next: str | None


@dataclass(frozen=True, slots=True)
class NewPolicyPage:
    """The form for an endpoint or a script."""

    kind: str
    scripts: dict[str, str]


@dataclass(frozen=True, slots=True)
class PolicyPage:
    """One policy, its checkpoints and its newest runs."""

    policy: Policy
    checkpoints: Sequence[Checkpoint]
    runs: Sequence[Run]
    can_delete: bool


@router.get("/policies", response_class=HTMLResponse)
def list_policies(request: Request, session: SessionDep, _: Viewer, after: After = None) -> HTMLResponse:
    found = queries.policies(session, after=after)
    counts = queries.run_counts(session, [policy.id for policy in found.items])
    return page(request, "policies/list.html", PoliciesPage(found.items, counts, found.next))


@router.get("/policies/new", response_class=HTMLResponse)
def new_policy(request: Request, _: Trainer, kind: str = "openai_api") -> HTMLResponse:
    return page(request, "policies/new.html", NewPolicyPage(kind, SCRIPTED))


@router.post("/policies", response_class=HTMLResponse)
def add_policy(
    session: SessionDep, actor: Trainer, form: Annotated[PolicyRequest, Depends(read_form(PolicyRequest))]
) -> Response:
    policy = service.add_policy(session, actor, form)
    return see_other(f"/policies/{policy.id}", f"The policy {policy.name} is ready.")


@router.get("/policies/{policy_id}", response_class=HTMLResponse)
def show_policy(request: Request, policy_id: uuid.UUID, session: SessionDep, _: Viewer) -> HTMLResponse:
    policy = queries.get_policy(session, policy_id)
    context = PolicyPage(
        policy,
        queries.checkpoints(session, policy_id=policy.id)[::-1],
        queries.runs_of_policy(session, policy.id),
        can_delete=policy.deleted_at is None and policy.name not in SCRIPTED and policy.name != "human",
    )
    return page(request, "policies/detail.html", context)


@router.post("/policies/{policy_id}/delete", response_class=HTMLResponse)
def delete_policy(policy_id: uuid.UUID, session: SessionDep, actor: Trainer) -> Response:
    policy = queries.get_policy(session, policy_id)
    name = policy.name
    service.delete_policy(session, actor, policy)
    return see_other("/policies", f"The policy {name} was deleted.")
