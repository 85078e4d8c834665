"""`proctor judge …` and `proctor policy …` with a real web server and a worker for their jobs."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import select

from backend.core.session import transaction
from backend.core.tables import Job
from backend.domain.vocabulary import JobStatus, RunStatus
from backend.graders.tables import GraderRun
from backend.rollouts.tables import Rollout
from tests.graders.conftest import BAD, GOOD, make_judged_run
from tests.graders.fake import FakeJudge, serving
from tests.ops.commands import Command, Result, proctor, repeated, server
from tests.policies.probed import ProbedEndpoint
from tests.policies.test_connection_job import serving as serving_probed
from workers.tasks.registry import JobContext, find_body

__all__ = ["proctor", "server"]
pytestmark = pytest.mark.slow


@pytest.fixture
def worker(proctor: Command) -> Iterator[None]:
    """Run the queued jobs one after the other."""

    def work() -> None:
        with transaction() as session:
            job = session.scalars(select(Job).where(Job.status == JobStatus.QUEUED).order_by(Job.id)).first()
        if job is not None:
            find_body(job.name)(JobContext(job.id, None, dict(job.arguments), 1))
            with transaction() as session:
                session.get_one(Job, job.id).status = JobStatus.DONE

    with repeated(work):
        yield


def judged_run(*answers: str | None) -> tuple[uuid.UUID, uuid.UUID]:
    """A run and its first rollout."""
    with transaction() as session:
        run = make_judged_run(session, list(answers))
        first = session.scalars(select(Rollout.id).where(Rollout.run_id == run.id).order_by(Rollout.seq)).first()
        assert first is not None
        return run.id, first


def answer_in(result: Result) -> dict[str, Any]:
    """The worker logs to the same standard output."""
    found: dict[str, Any] = json.loads(result.out[result.out.index("{\n") :])
    return found


@pytest.mark.usefixtures("worker")
def test_a_judge_is_added_tried_and_let_loose_on_a_run(proctor: Command) -> None:
    run, rollout = judged_run(GOOD, BAD, None)
    with serving(FakeJudge()) as fake:
        proctor("policy", "add", "fake", "--base-url", fake.url, "--model", "m", *("--price-input", "1"))
        added = proctor("policy", "add", "fake", "--base-url", fake.url, "--model", "m")
        assert added.status == 0
        judge = proctor("judge", "add", "strict", "--policy", "fake", "--instruction", "Is {{ answer }} right?")
        assert judge.status == 0, judge.err
        assert "strict" in proctor("judge", "list").out
        tried = proctor("judge", "test", "strict", str(rollout), "--json")
        assert (tried.status, answer_in(tried)["rollouts"][0]["score"]) == (0, 1.0)
        work = proctor("judge", "run", "strict", str(run), "--json")
        assert work.status == 0
        found = answer_in(work)
        assert (found["graded"], found["total"], found["score"]["mean"]) == (2, 2, 0.5)
        assert "2 of 2" in proctor("judge", "results", str(run)).out
        only = proctor("judge", "run", "strict", str(run), "--where", "level = 77")
        assert only.status == 2
        assert "No completed rollout" in only.err
        assert proctor("judge", "show", "nobody").status == 2


@pytest.mark.usefixtures("worker")
def test_a_judge_that_is_down_ends_badly(proctor: Command) -> None:
    _, rollout = judged_run(GOOD)
    proctor("policy", "add", "down", "--base-url", "http://127.0.0.1:9/v1", "--model", "m")
    proctor("judge", "add", "absent", "--policy", "down", "--scale", "rubric", "--criterion", "right, 2: Is it right?")
    assert proctor("judge", "test", "absent", str(rollout)).status == 1


@pytest.mark.usefixtures("worker")
def test_a_policy_is_tested_and_edited(proctor: Command) -> None:
    with serving_probed(ProbedEndpoint(key="sk-right")) as endpoint:
        proctor("policy", "add", "mine", "--base-url", endpoint.url, "--model", "small", "--key", "sk-right")
        tested = proctor("policy", "test", "mine")
        assert tested.status == 0, tested.err
        assert "✓ reach" in tested.out
        assert proctor("policy", "models", "mine", "--json").json == ["large", "small"]
        changed = ("--model", "large", "--price-input", "1", "--price-output", "2", "--concurrency", "4")
        edited = proctor("policy", "edit", "mine", *changed, "--json").json
        assert edited["configuration"]["price"] == {"input": 1.0, "output": 2.0}
        assert edited["configuration"]["limits"] == {"concurrency": 4}
        assert edited["has_secret"] is True
        kept = proctor("policy", "edit", "mine", "--description", "Mine.", "--json").json
        assert kept["configuration"] == edited["configuration"]
        assert proctor("policy", "edit", "mine", "--key", "sk-wrong").status == 0
        assert proctor("policy", "test", "mine").status == 1


def test_a_wait_is_not_needed(proctor: Command) -> None:
    run, _ = judged_run(GOOD)
    proctor("policy", "add", "down", "--preset", "llama_cpp", "--model", "m")
    proctor("judge", "add", "patient", "--policy", "down")
    queued = proctor("judge", "run", "patient", str(run), "--no-wait")
    assert queued.status == 0
    assert "queued" in queued.out
    assert proctor("judge", "stop", "patient", str(run)).status == 0
    with transaction() as session:
        assert session.scalars(select(GraderRun).where(GraderRun.run_id == run)).one().status is RunStatus.STOPPED
