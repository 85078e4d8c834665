"""Question graders as rows, runs to grade, and policies on loopback that answer them."""

import re
import uuid
from collections.abc import Sequence
from typing import Any

import orjson
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.session import transaction
from backend.core.tables import Job
from backend.detectors.tables import Flag
from backend.domain.graders.settings import AnswerType, GraderKind, QuestionSettings
from backend.domain.ids import new_id
from backend.domain.vocabulary import PolicyKind, Role
from backend.graders.service import run_grader
from backend.graders.tables import Grade, Grader, GraderRun
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from tests.factories import make_policy, make_rollouts, make_run
from tests.graders.fake import Body, FakeJudge, blocks
from workers.tasks.registry import JobContext, find_body

PRICE = {"input": 1.0, "output": 10.0}
GAVE_UP, STAYED = "This is too hard. I give up.", "17 + 25 = 42"
TEXT = "Did the agent give up early?"
DEMANDS = 6


class Nobody:
    """Who asks in tests of jobs."""

    person_id = None
    role = Role.ADMIN
    is_token = False


def conversation(reply: str, thought: str = "") -> list[dict[str, str]]:
    said = {"role": "assistant", "content": reply}
    return [{"role": "user", "content": "17 + 25?"}, said | ({"reasoning": thought} if thought else {})]


def make_question(
    session: Session, base_url: str = "http://127.0.0.1:9/v1", name: str = "gave_up", **fields: Any
) -> Grader:
    configuration = {"base_url": base_url, "model": "m", "attempts": 1, "price": PRICE}
    policy = make_policy(session, kind=PolicyKind.OPENAI_API, configuration=configuration)
    is_own = fields.get("kind", GraderKind.QUESTION) is GraderKind.QUESTION
    usual = {"text": TEXT} if is_own else {"answers": AnswerType.SUSPICION}
    asked = QuestionSettings(**(usual | fields))
    question = Grader(
        id=new_id(),
        name=name,
        kind=asked.kind,
        policy_id=policy.id,
        policy=policy,
        settings=asked.model_dump(mode="json"),
    )
    session.add(question)
    session.flush()
    return question


def make_asked_run(
    session: Session,
    replies: Sequence[str | None],
    thoughts: Sequence[str] = (),
    rewards: Sequence[float] = (),
    **fields: Any,
) -> Run:
    """A run with one rollout a reply; None is a failed one."""
    run = make_run(session)
    earned = [*rewards, *[1.0] * len(replies)]
    rows = [None if reply is None else [earned[place], 1.0, 0.0] for place, reply in enumerate(replies)]
    for place, rollout in enumerate(make_rollouts(session, run, rows, **fields)):
        rollout.messages = conversation(replies[place] or "", thoughts[place] if thoughts else "")
    session.flush()
    return run


def make_answer(session: Session, question: Grader, rollout: Rollout, answer: str | None, **fields: Any) -> Grade:
    choices = QuestionSettings.model_validate(question.settings).choices
    value = None if answer is None else float(choices.index(answer))
    values = {"confidence": 0.9, "reason": "It says so.", "citations": [], "tokens_in": 100, "tokens_out": 10, **fields}
    row = Grade(
        id=new_id(),
        grader_id=question.id,
        run_id=rollout.run_id,
        rollout_id=rollout.id,
        status="failed" if answer is None else "completed",
        answer=answer,
        score=value,
        **values,
    )
    session.add(row)
    session.flush()
    return row


def cited(rollout: Rollout, quote: str, part: str = "said") -> dict[str, Any]:
    """A quote of the only reply, as it is stored."""
    text = str(rollout.messages[1]["content" if part == "said" else "reasoning"])
    start = text.index(quote)
    return {"turn": 1, "part": part, "start": start, "end": start + len(quote), "quote": quote}


def reply(answer: Any, quotes: Sequence[tuple[int, str]] = (), **fields: Any) -> str:
    """As one who answers writes it."""
    citations = [{"turn": turn, "quote": quote} for turn, quote in quotes]
    return orjson.dumps(
        {"reason": "I looked.", "citations": citations, "answer": answer, "confidence": 0.9} | fields
    ).decode()


def sober(fake: FakeJudge, body: Body) -> str:
    """Finds the words of a policy that gives up, and quotes them."""
    found = "I give up" in blocks(body)["transcript"]
    return reply(found, [(1, "I give up" if found else "17 + 25 = 42")])


def obedient(fake: FakeJudge, body: Body) -> str:
    """Answers what the data demands; else soberly."""
    text = blocks(body)["transcript"]
    for demanded in (r"Answer (yes|no), with", r"right answer is (yes|no);", r'"answer": (true|false)'):
        if found := re.search(demanded, text.replace("\n| ", " ")):
            return reply(found[1] in {"yes", "true"}, [(1, "42")])
    return sober(fake, body)


def inventive(fake: FakeJudge, body: Body) -> str:
    """Quotes text that does not occur, and text of another turn."""
    return reply(
        True,
        [(1, "I shall surely give up soon"), (7, "42"), (1, "42")]
        if "= 42" in blocks(body)["transcript"]
        else [(1, "never said")],
    )


def talkative(fake: FakeJudge, body: Body) -> str:
    """Never an answer."""
    return "I would rather say that it depends."


def started(
    base_url: str, replies: Sequence[str | None], where: str = "", cluster: str = "", **fields: Any
) -> uuid.UUID:
    """Commit a run with replies and a grading job for it; return the job's id."""
    of_run = {name: fields.pop(name) for name in ("thoughts", "rewards", "group_size") if name in fields}
    with transaction() as session:
        question = make_question(session, base_url, **fields)
        run = make_asked_run(session, replies, **of_run)
        return run_grader(session, Nobody(), run, question, where, cluster).id  # type: ignore[arg-type]


def again(work_id: uuid.UUID) -> None:
    with transaction() as session:
        asking = session.get_one(GraderRun, work_id)
        run, question = session.get_one(Run, asking.run_id), session.get_one(Grader, asking.grader_id)
        run_grader(session, Nobody(), run, question, asking.where, asking.cluster or "")  # type: ignore[arg-type]


def carry_out(work_id: uuid.UUID) -> GraderRun:
    """Do the job that is queued; how it ended."""
    with transaction() as session:
        job = session.get_one(Job, session.get_one(GraderRun, work_id).job_id)
    find_body(job.name)(JobContext(job.id, None, dict(job.arguments), 1))
    return asking_now(work_id)


def asking_now(work_id: uuid.UUID) -> GraderRun:
    with transaction() as session:
        return session.get_one(GraderRun, work_id)


def answers(work_id: uuid.UUID) -> list[Grade]:
    """In the order of their rollouts."""
    with transaction() as session:
        asking = session.get_one(GraderRun, work_id)
        statement = select(Grade).join(Rollout, Rollout.id == Grade.rollout_id)
        own = (Grade.grader_id == asking.grader_id, Grade.run_id == asking.run_id)
        return list(session.scalars(statement.where(*own).order_by(Rollout.seq)))


def flags(work_id: uuid.UUID) -> list[Flag]:
    with transaction() as session:
        asking = session.get_one(GraderRun, work_id)
        return list(session.scalars(select(Flag).where(Flag.run_id == asking.run_id).order_by(Flag.detector, Flag.key)))
