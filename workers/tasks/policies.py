"""The job `policies.test`: test the connection of a policy's endpoint and store the report in the job's row."""

import uuid

from sqlalchemy.orm import Session

from backend.core.queue import keep_answer
from backend.core.sealing import SecretUnreadable
from backend.core.session import transaction
from backend.domain.policies.connections import ConnectionReport, Finding
from backend.domain.vocabulary import CheckStatus, PolicyKind
from backend.policies.service import secret_of
from backend.policies.tables import Policy
from workers.policies.probe import probe
from workers.tasks.execute import run_async
from workers.tasks.registry import JobContext


def run(context: JobContext) -> None:
    with transaction() as session:
        policy = session.get(Policy, uuid.UUID(context.arguments["policy_id"]))
        if policy is None or policy.deleted_at is not None or policy.kind is not PolicyKind.OPENAI_API:
            return
        configuration = policy.configuration
        base_url, model = str(configuration["base_url"]), str(configuration["model"])
        try:
            key, unreadable = secret_of(policy), None
        except SecretUnreadable as error:
            key, unreadable = None, Finding(check="key", status=CheckStatus.FAILED, sentence=str(error))
    if unreadable is not None:
        report = ConnectionReport(base_url=base_url, model=model, findings=[unreadable])
    else:
        report = run_async(probe(base_url, model, key, dict(configuration.get("extra") or {})))
    with transaction() as session:
        keep_answer(session, context.job_id, report.model_dump(mode="json"))


def give_up(session: Session, context: JobContext, error: str) -> None:
    """Record that the test failed, so that the page does not wait forever."""
    failed = Finding(check="reach", status=CheckStatus.FAILED, sentence=f"The test itself failed: {error}")
    keep_answer(session, context.job_id, ConnectionReport(base_url="", model="", findings=[failed]).model_dump())
