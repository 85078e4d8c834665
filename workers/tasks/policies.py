"""The job `policies.test`: look at a policy's endpoint and keep what was found in the job's row."""

import uuid
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from backend.core.queue import keep_answer
from backend.core.sealing import SecretUnreadable
from backend.core.session import transaction
from backend.domain.policies.connections import ConnectionReport, Finding
from backend.domain.vocabulary import CheckStatus, PolicyKind
from backend.policies.service import secret_of
from backend.policies.tables import Policy
from workers.policies.probe import probe
from workers.tasks.event_loops import run_async
from workers.tasks.registry import JobContext


@dataclass(frozen=True, slots=True)
class _Endpoint:
    base_url: str
    model: str
    key: str | None
    extra: dict[str, Any]


def look(context: JobContext) -> None:
    """The job's body."""
    found = _read(uuid.UUID(context.arguments["policy_id"]))
    if found is None:
        return
    report = found
    if isinstance(found, _Endpoint):
        report = run_async(probe(found.base_url, found.model, found.key, found.extra))
    assert isinstance(report, ConnectionReport)
    with transaction() as session:
        keep_answer(session, context.job_id, report.model_dump(mode="json"))


def give_up(session: Session, context: JobContext, error: str) -> None:
    """The worker failed and will not try again: the page shall not wait for ever."""
    failed = Finding(check="reach", status=CheckStatus.FAILED, sentence=f"The test itself failed: {error}")
    keep_answer(session, context.job_id, ConnectionReport(base_url="", model="", findings=[failed]).model_dump())


def _read(policy_id: uuid.UUID) -> _Endpoint | ConnectionReport | None:
    """A report where nothing needs to be asked; None when the policy is gone or has no endpoint."""
    with transaction() as session:
        policy = session.get(Policy, policy_id)
        if policy is None or policy.deleted_at is not None or policy.kind is not PolicyKind.OPENAI_API:
            return None
        chosen = policy.configuration
        base_url, model = str(chosen["base_url"]), str(chosen["model"])
        try:
            key = secret_of(policy)
        except SecretUnreadable as error:
            unreadable = Finding(check="key", status=CheckStatus.FAILED, sentence=str(error))
            return ConnectionReport(base_url=base_url, model=model, findings=[unreadable])
        return _Endpoint(base_url, model, key, dict(chosen.get("extra") or {}))
