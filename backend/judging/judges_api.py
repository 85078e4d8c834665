"""The JSON API of judges; that of their work on a run is in `evaluations.judge_api`."""

import uuid
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from sqlalchemy.orm import Session

from backend.errors import InvalidInput
from backend.judging import judge_queries, judges_service, queries
from backend.judging.judge_answers import JudgeAnswer, JudgementAnswer
from backend.judging.judge_forms import AskRequest, JudgeRequest
from backend.web.dependencies import Author, SessionDep, Trainer, Viewer
from backend.web.paging import Page

router = APIRouter(prefix="/api/v1", tags=["judges"])


class AskedAnswer(BaseModel):
    """A try of a judge on one rollout. Ask again until `is_waiting` is false."""

    id: uuid.UUID
    is_waiting: bool
    answer: dict[str, Any] | None
    """`score`, `spread`, `error`, tokens, `cost`, and `repeats`: the exact messages sent, the replies, the verdict."""


@router.get("/judges")
def list_judges(session: SessionDep, _: Viewer) -> Page[JudgeAnswer]:
    """Judges that were not deleted, by name."""
    return Page(items=[JudgeAnswer.of(judge) for judge in judge_queries.judges(session)])


@router.post("/judges", status_code=201)
def add_judge(session: SessionDep, actor: Trainer, request: JudgeRequest) -> JudgeAnswer:
    return JudgeAnswer.of(judges_service.add_judge(session, actor, request))


@router.get("/judges/{judge_id}")
def get_judge(judge_id: uuid.UUID, session: SessionDep, _: Viewer) -> JudgeAnswer:
    return JudgeAnswer.of(judge_queries.get_judge(session, judge_id))


@router.put("/judges/{judge_id}")
def change_judge(judge_id: uuid.UUID, session: SessionDep, actor: Trainer, request: JudgeRequest) -> JudgeAnswer:
    """Only while it has not judged; afterwards add another one."""
    judge = judge_queries.get_judge(session, judge_id)
    return JudgeAnswer.of(judges_service.change_judge(session, actor, judge, request))


@router.delete("/judges/{judge_id}", status_code=204)
def delete_judge(judge_id: uuid.UUID, session: SessionDep, actor: Trainer) -> None:
    """Its judgements stay with their rollouts; its name is free again."""
    judges_service.delete_judge(session, actor, judge_queries.get_judge(session, judge_id))


@router.post("/judges/{judge_id}/ask", status_code=202)
def ask_judge(judge_id: uuid.UUID, session: SessionDep, actor: Author, request: AskRequest) -> AskedAnswer:
    """Try a judge on one rollout; nothing of it is stored as a judgement."""
    judge = judge_queries.get_judge(session, judge_id)
    if judge_queries.find_rollout(session, str(request.rollout_id)) is None:
        raise InvalidInput(fields={"rollout_id": "There is no such rollout."})
    job = judges_service.ask_judge(session, actor, judge, request.rollout_id)
    return _asked(session, judge_id, job.id)


@router.get("/judges/{judge_id}/asked/{job_id}")
def get_asked(judge_id: uuid.UUID, job_id: uuid.UUID, session: SessionDep, _: Author) -> AskedAnswer:
    return _asked(session, judge_id, job_id)


@router.get("/rollouts/{rollout_id}/judgements")
def judgements_of_rollout(rollout_id: uuid.UUID, session: SessionDep, _: Viewer) -> Page[JudgementAnswer]:
    """What each judge said of a rollout."""
    rollout = queries.get_rollout(session, rollout_id)
    found = judge_queries.judgements_of_rollout(session, rollout.id)
    return Page(items=[JudgementAnswer.of(judgement) for _, judgement in found])


def _asked(session: Session, judge_id: uuid.UUID, job_id: uuid.UUID) -> AskedAnswer:
    found = judge_queries.asked(session, judge_id, job_id)
    return AskedAnswer(id=job_id, is_waiting=found.answer is None, answer=found.answer)
