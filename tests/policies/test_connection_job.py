"""The job that tests a policy's endpoint, and the page that shows its progress."""

import asyncio
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.session import transaction
from backend.core.tables import Job
from backend.domain.vocabulary import JobStatus, PolicyKind
from backend.policies.schemas import CreatePolicy
from backend.policies.service import create_policy, latest_connection_test, start_connection_test
from backend.policies.tables import Policy
from tests.factories import make_member, make_policy
from tests.policies.probed import ProbedEndpoint, probed
from workers.tasks import policies as body
from workers.tasks.registry import JobContext, find_body

ENDPOINT = {"kind": "openai_api", "name": "qwen", "base_url": "http://127.0.0.1:9/v1", "model": "small"}


@contextmanager
def serving(endpoint: ProbedEndpoint) -> Iterator[ProbedEndpoint]:
    """In a thread, because the job has its own event loop."""
    loop, ready, over = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def main() -> None:
        async with probed(endpoint):
            ready.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    ready.wait(5)
    try:
        yield endpoint
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


def ask(base_url: str) -> tuple[uuid.UUID, uuid.UUID]:
    with transaction() as session:
        member = make_member(session)
        request = CreatePolicy.model_validate(ENDPOINT | {"base_url": base_url, "secret": "sk-right"})
        policy = create_policy(session, member, request)
        job = start_connection_test(session, member, policy)
        return policy.id, job.id


def look(job_id: uuid.UUID) -> None:
    with transaction() as session:
        job = session.get_one(Job, job_id)
    find_body("policies.test")(JobContext(job.id, None, dict(job.arguments), 1))


@pytest.mark.usefixtures("committed_database")
def test_what_the_worker_finds_is_kept_for_the_page() -> None:
    with serving(ProbedEndpoint(key="sk-right")) as endpoint:
        policy_id, job_id = ask(endpoint.url)
        look(job_id)
    with transaction() as session:
        policy = session.get_one(Policy, policy_id)
        found = latest_connection_test(session, policy)
        assert found is not None
        assert found.report is not None
        assert found.report.status == "passed"
        assert not found.is_stale
        policy.configuration = {**policy.configuration, "model": "large"}
        changed = latest_connection_test(session, policy)
        assert changed is not None
        assert changed.is_stale


@pytest.mark.usefixtures("committed_database")
def test_a_key_that_cannot_be_read_is_a_finding() -> None:
    policy_id, job_id = ask("http://127.0.0.1:9/v1")
    with transaction() as session:
        session.get_one(Policy, policy_id).secret = b"nonsense"
    look(job_id)
    with transaction() as session:
        found = latest_connection_test(session, session.get_one(Policy, policy_id))
        assert found is not None
        assert found.report is not None
        assert "again" in found.report.findings[0].sentence


def test_a_test_that_is_given_up_does_not_wait_for_ever(session: Session) -> None:
    member = make_member(session)
    policy = create_policy(session, member, CreatePolicy.model_validate(ENDPOINT))
    job = start_connection_test(session, member, policy)
    body.give_up(session, JobContext(job.id, None, dict(job.arguments), 2), "the worker died")
    found = latest_connection_test(session, policy)
    assert found is not None
    assert found.report is not None
    assert "the worker died" in found.report.findings[0].sentence


def test_the_page_asks_shows_and_offers_the_models(session: Session, trainer: TestClient, viewer: TestClient) -> None:
    trainer.post("/policies", data=ENDPOINT | {"test": "true"})
    policy = session.scalars(select(Policy).where(Policy.name == "qwen")).one()
    assert "A worker is testing" in viewer.get(f"/policies/{policy.id}").text
    asked = trainer.post(f"/policies/{policy.id}/test")
    assert asked.headers["location"] == f"/policies/{policy.id}"  # a fragment would not load the page anew
    job = session.scalars(select(Job).where(Job.name == "policies.test")).one()
    hostile = "<script>alert(1)</script>"
    finding = {"check": "reach", "status": "failed", "sentence": hostile, "advice": "Look there."}
    report = {"base_url": ENDPOINT["base_url"], "model": "small", "findings": [finding], "models": ["large", hostile]}
    job.arguments = {**job.arguments, "answer": report}
    job.status = JobStatus.DONE
    session.flush()
    page = trainer.get(f"/policies/{policy.id}").text
    assert "Look there." in page
    assert hostile not in page
    assert '<option value="large">' in page
    assert trainer.post(f"/policies/{policy.id}/model", data={"model": "large"}).status_code == 303
    assert policy.configuration["model"] == "large"
    answer = viewer.get(f"/api/v1/policies/{policy.id}/test").json()
    assert answer["is_finished"] is False  # choosing a model tests again


def test_only_a_trainer_tests_and_only_endpoints(session: Session, trainer: TestClient, author: TestClient) -> None:
    script = make_policy(session)
    assert trainer.post(f"/api/v1/policies/{script.id}/test").status_code == 409
    assert trainer.get(f"/api/v1/policies/{script.id}/test").status_code == 404
    endpoint = make_policy(session, kind=PolicyKind.OPENAI_API, configuration={"base_url": "http://x/v1", "model": "m"})
    assert author.post(f"/policies/{endpoint.id}/test").status_code == 403
    assert trainer.post(f"/api/v1/policies/{endpoint.id}/test").json()["is_finished"] is False
