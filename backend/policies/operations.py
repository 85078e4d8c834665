"""The JSON API of policies."""

import uuid
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, Field

from backend.domain.policies.connections import Finding
from backend.domain.vocabulary import CheckStatus
from backend.errors import NotFound
from backend.policies import connection_tests
from backend.policies import service as policies
from backend.policies.schemas import PRESETS, PolicyRequest, Preset
from backend.policies.tables import Policy
from backend.runs import queries
from backend.runs.responses import PolicyAnswer
from backend.web.dependencies import SessionDep, Trainer, Viewer
from backend.web.paging import After, Limit, Page

router = APIRouter(prefix="/api/v1", tags=["policies"])


class ConnectionAnswer(BaseModel):
    """What a test of a policy's connection found; `is_waiting` until a worker has looked."""

    id: uuid.UUID
    asked_at: datetime
    is_waiting: bool
    is_stale: bool
    """The policy was changed since."""
    status: CheckStatus | None
    """The worst finding."""
    findings: list[Finding]
    models: list[str]
    """What the endpoint lists."""
    seconds: float | None

    @classmethod
    def of(cls, test: connection_tests.ConnectionTest) -> "ConnectionAnswer":
        report = test.report
        return cls(
            id=test.id,
            asked_at=test.asked_at,
            is_waiting=report is None,
            is_stale=test.is_stale,
            status=report.status if report else None,
            findings=report.findings if report else [],
            models=report.models if report else [],
            seconds=report.seconds if report else None,
        )


class ChosenModel(BaseModel):
    model: Annotated[str, Field(min_length=1, max_length=200)]


@router.get("/policies")
def list_policies(session: SessionDep, _: Viewer, after: After = None, limit: Limit = 100) -> Page[PolicyAnswer]:
    """Policies that were not deleted, by name."""
    found = queries.policies(session, after=after, limit=limit)
    return Page(items=[PolicyAnswer.of(policy) for policy in found.items], next=found.next)


@router.post("/policies", status_code=201)
def add_policy(session: SessionDep, actor: Trainer, request: PolicyRequest) -> PolicyAnswer:
    """Add a model endpoint or a script as a policy."""
    return PolicyAnswer.of(policies.add_policy(session, actor, request))


@router.get("/policies/presets")
def list_presets(_: Viewer) -> list[Preset]:
    """Kinds of endpoints with the base URL that they usually have."""
    return list(PRESETS)


@router.get("/policies/{policy_id}")
def get_policy(policy_id: uuid.UUID, session: SessionDep, _: Viewer) -> PolicyAnswer:
    return PolicyAnswer.of(queries.get_policy(session, policy_id))


@router.put("/policies/{policy_id}")
def change_policy(policy_id: uuid.UUID, session: SessionDep, actor: Trainer, request: PolicyRequest) -> PolicyAnswer:
    """What it shall be from now on. An empty `secret` keeps the stored one, unless the base URL changes."""
    policy = queries.get_policy(session, policy_id)
    return PolicyAnswer.of(policies.change_policy(session, actor, policy, request))


@router.delete("/policies/{policy_id}", status_code=204)
def delete_policy(policy_id: uuid.UUID, session: SessionDep, actor: Trainer) -> None:
    """What it played stays; its key is forgotten and its name is free again."""
    policies.delete_policy(session, actor, queries.get_policy(session, policy_id))


@router.post("/policies/{policy_id}/test", status_code=202)
def test_connection(policy_id: uuid.UUID, session: SessionDep, actor: Trainer) -> ConnectionAnswer:
    """Let a worker look at the endpoint: a few tiny requests. Ask by GET until `is_waiting` is false."""
    policy = queries.get_policy(session, policy_id)
    connection_tests.start_test(session, actor, policy)
    return _newest(session, policy)


@router.get("/policies/{policy_id}/test")
def get_connection(policy_id: uuid.UUID, session: SessionDep, _: Viewer) -> ConnectionAnswer:
    """The newest test, with the models that the endpoint lists."""
    return _newest(session, queries.get_policy(session, policy_id))


@router.post("/policies/{policy_id}/model")
def choose_model(policy_id: uuid.UUID, session: SessionDep, actor: Trainer, chosen: ChosenModel) -> PolicyAnswer:
    """Take another model of the same endpoint."""
    policy = queries.get_policy(session, policy_id)
    return PolicyAnswer.of(policies.choose_model(session, actor, policy, chosen.model))


def _newest(session: SessionDep, policy: Policy) -> ConnectionAnswer:
    found = connection_tests.newest_test(session, policy)
    if found is None:
        raise NotFound(f"The connection of {policy.name} was not tested yet.")
    return ConnectionAnswer.of(found)
