"""Judges as rows, runs that they look at, browsers of every role."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.session import transaction
from backend.core.tables import Job
from backend.domain.graders.judges import JudgeConfiguration
from backend.domain.graders.judging_record import JudgingRecord
from backend.domain.ids import new_id
from backend.domain.vocabulary import GradeStatus, PolicyKind
from backend.graders.judges.queries import record_of
from backend.graders.judges.service import start_judging
from backend.graders.tables import Judge, Judgement
from backend.runs.tables import Run
from tests.factories import make_policy, make_rollouts, make_run
from tests.web_fixtures import *  # noqa: F403
from workers.tasks.registry import JobContext, find_body

GOOD, BAD = "17 + 25 = 42", "17 + 25 = 9"
PRICE = {"input": 1.0, "output": 10.0}


def conversation(answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": "17 + 25?"}, {"role": "assistant", "content": answer}]


def make_judge(session: Session, base_url: str = "http://127.0.0.1:9/v1", name: str = "strict", **fields: Any) -> Judge:
    configuration = {"base_url": base_url, "model": "m", "attempts": 1, "price": PRICE}
    policy = make_policy(session, kind=PolicyKind.OPENAI_API, configuration=configuration)
    asked = JudgeConfiguration(**fields).model_dump(mode="json")
    judge = Judge(id=new_id(), name=name, policy_id=policy.id, policy=policy, configuration=asked)
    session.add(judge)
    session.flush()
    return judge


def make_judged_run(session: Session, answers: list[str | None], **fields: Any) -> Run:
    """A run with one rollout an answer; None is a failed one."""
    run = make_run(session, **fields)
    rollouts = make_rollouts(session, run, [None if answer is None else [1.0, 1.0, 0.0] for answer in answers])
    for rollout, answer in zip(rollouts, answers, strict=True):
        rollout.messages = conversation(answer or "")
    session.flush()
    return run


def make_judgement(session: Session, judge: Judge, rollout: Any, score: float | None, **fields: Any) -> Judgement:
    status = GradeStatus.FAILED if score is None else GradeStatus.COMPLETED
    values = {"verdicts": [{"score": score, "reason": "Because.", "asked": 1}], "tokens_in": 100, **fields}
    judgement = Judgement(
        id=new_id(),
        judge_id=judge.id,
        run_id=rollout.run_id,
        rollout_id=rollout.id,
        status=status,
        score=score,
        **values,
    )
    session.add(judgement)
    session.flush()
    return judgement


Judging = tuple[uuid.UUID, uuid.UUID]


@pytest.fixture
def start(committed_database: str) -> Callable[..., Judging]:
    """A committed run with answers, and a judge that is asked to look at it: (run's id, judge's id)."""

    def start(base_url: str, answers: list[str | None], where: str = "", **fields: Any) -> Judging:
        with transaction() as session:
            judge = make_judge(session, base_url, **fields)
            run = make_judged_run(session, answers)
            start_judging(session, None, run, judge, where)
            return run.id, judge.id

    return start


def again(judging: Judging) -> None:
    with transaction() as session:
        start_judging(session, None, session.get_one(Run, judging[0]), session.get_one(Judge, judging[1]))


def carry_out(judging: Judging) -> JudgingRecord:
    """Do the job that is queued; how it ended."""
    with transaction() as session:
        record = record_of(session.get_one(Run, judging[0]), judging[1])
        assert record is not None
        job = session.get_one(Job, uuid.UUID(record.job_id))
    find_body(job.name)(JobContext(job.id, None, dict(job.arguments), 1))
    return record_now(judging)


def record_now(judging: Judging) -> JudgingRecord:
    with transaction() as session:
        record = record_of(session.get_one(Run, judging[0]), judging[1])
        assert record is not None
        return record


def judgements(judging: Judging) -> list[Judgement]:
    with transaction() as session:
        statement = select(Judgement).where(Judgement.run_id == judging[0], Judgement.judge_id == judging[1])
        return list(session.scalars(statement))
