"""Judges as rows, runs that they grade, browsers of every role."""

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.session import transaction
from backend.core.tables import Job
from backend.domain.graders.settings import GraderKind, JudgeSettings
from backend.domain.ids import new_id
from backend.domain.vocabulary import GradeStatus, PolicyKind
from backend.graders.queries import find_work
from backend.graders.service import run_grader
from backend.graders.tables import Grade, Grader, GraderRun
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from tests.factories import make_policy, make_rollouts, make_run
from tests.web_fixtures import *  # noqa: F403
from workers.tasks.registry import JobContext, find_body

GOOD, BAD = "17 + 25 = 42", "17 + 25 = 9"
PRICE = {"input": 1.0, "output": 10.0}


def conversation(answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": "17 + 25?"}, {"role": "assistant", "content": answer}]


def make_judge(
    session: Session, base_url: str = "http://127.0.0.1:9/v1", name: str = "strict", **fields: Any
) -> Grader:
    configuration = {"base_url": base_url, "model": "m", "attempts": 1, "price": PRICE}
    policy = make_policy(session, kind=PolicyKind.OPENAI_API, configuration=configuration)
    settings = JudgeSettings(**fields).model_dump(mode="json")
    judge = Grader(id=new_id(), name=name, kind=GraderKind.JUDGE, policy_id=policy.id, policy=policy, settings=settings)
    session.add(judge)
    session.flush()
    return judge


def make_judged_run(session: Session, answers: Sequence[str | None], **fields: Any) -> Run:
    """A run with one rollout an answer; None is a failed one."""
    run = make_run(session, **fields)
    rollouts = make_rollouts(session, run, [None if answer is None else [1.0, 1.0, 0.0] for answer in answers])
    for rollout, answer in zip(rollouts, answers, strict=True):
        rollout.messages = conversation(answer or "")
    session.flush()
    return run


def rollouts_of(session: Session, run: Run) -> list[Rollout]:
    return list(session.scalars(select(Rollout).where(Rollout.run_id == run.id).order_by(Rollout.seq)))


def make_judgement(session: Session, judge: Grader, rollout: Rollout, score: float | None, **fields: Any) -> Grade:
    status = GradeStatus.FAILED if score is None else GradeStatus.COMPLETED
    values = {"verdicts": [{"score": score, "reason": "Because.", "asked": 1}], "tokens_in": 100, **fields}
    grade = Grade(
        id=new_id(),
        grader_id=judge.id,
        run_id=rollout.run_id,
        rollout_id=rollout.id,
        status=status,
        score=score,
        **values,
    )
    session.add(grade)
    session.flush()
    return grade


Judging = tuple[uuid.UUID, uuid.UUID]


@pytest.fixture
def start(committed_database: str) -> Callable[..., Judging]:
    """A committed run with answers, and a judge that is started on it: (run's id, judge's id)."""

    def start(base_url: str, answers: list[str | None], where: str = "", **fields: Any) -> Judging:
        with transaction() as session:
            judge = make_judge(session, base_url, **fields)
            run = make_judged_run(session, answers)
            run_grader(session, None, run, judge, where)
            return run.id, judge.id

    return start


def again(judging: Judging) -> None:
    with transaction() as session:
        run_grader(session, None, session.get_one(Run, judging[0]), session.get_one(Grader, judging[1]))


def carry_out(judging: Judging) -> GraderRun:
    """Do the job that is queued; how it ended."""
    with transaction() as session:
        job = session.get_one(Job, record_now(judging).job_id)
    find_body(job.name)(JobContext(job.id, None, dict(job.arguments), 1))
    return record_now(judging)


def record_now(judging: Judging) -> GraderRun:
    with transaction() as session:
        work = find_work(session, judging[0], judging[1])
        assert work is not None
        return work


def judgements(judging: Judging) -> list[Grade]:
    with transaction() as session:
        statement = select(Grade).where(Grade.run_id == judging[0], Grade.grader_id == judging[1])
        return list(session.scalars(statement))
