"""The JSON API of judges; that of their work on a run is in `evaluations.judge_api`."""

import uuid

from fastapi import APIRouter

from backend.errors import InvalidInput
from backend.graders.judges import queries, service
from backend.graders.judges.requests import AskRequest, JudgeRequest
from backend.graders.judges.responses import AskedAnswer, JudgeAnswer, JudgementAnswer
from backend.graders.judges.service import JUDGES
from backend.review.queries import get_rollout
from backend.web.dependencies import Author, SessionDep, Trainer, Viewer
from backend.web.paging import Page

router = APIRouter(prefix="/api/v1", tags=["judges"])


@router.get("/judges")
def list_judges(session: SessionDep, _: Viewer) -> Page[JudgeAnswer]:
    """Judges that were not deleted, by name."""
    return Page(items=[JudgeAnswer.of(judge) for judge in queries.judges(session)])


@router.post("/judges", status_code=201)
def add_judge(session: SessionDep, actor: Trainer, request: JudgeRequest) -> JudgeAnswer:
    return JudgeAnswer.of(JUDGES.add(session, actor, request))


@router.get("/judges/{judge_id}")
def get_judge(judge_id: uuid.UUID, session: SessionDep, _: Viewer) -> JudgeAnswer:
    return JudgeAnswer.of(queries.get_judge(session, judge_id))


@router.put("/judges/{judge_id}")
def change_judge(judge_id: uuid.UUID, session: SessionDep, actor: Trainer, request: JudgeRequest) -> JudgeAnswer:
    """Only while it has not judged; afterwards add another one."""
    return JudgeAnswer.of(JUDGES.change(session, actor, judge_id, request))


@router.delete("/judges/{judge_id}", status_code=204)
def delete_judge(judge_id: uuid.UUID, session: SessionDep, actor: Trainer) -> None:
    """Its judgements stay with their rollouts; its name is free again."""
    JUDGES.delete(session, actor, judge_id)


@router.post("/judges/{judge_id}/ask", status_code=202)
def ask_judge(judge_id: uuid.UUID, session: SessionDep, actor: Author, request: AskRequest) -> AskedAnswer:
    """Try a judge on one rollout; nothing of it is stored as a judgement."""
    judge = queries.get_judge(session, judge_id)
    if queries.find_rollout(session, str(request.rollout_id)) is None:
        raise InvalidInput(fields={"rollout_id": "There is no such rollout."})
    job = service.ask_judge(session, actor, judge, request.rollout_id)
    return AskedAnswer.of(queries.asked(session, judge_id, job.id))


@router.get("/judges/{judge_id}/asked/{job_id}")
def get_asked(judge_id: uuid.UUID, job_id: uuid.UUID, session: SessionDep, _: Author) -> AskedAnswer:
    return AskedAnswer.of(queries.asked(session, judge_id, job_id))


@router.get("/rollouts/{rollout_id}/judgements")
def judgements_of_rollout(rollout_id: uuid.UUID, session: SessionDep, _: Viewer) -> Page[JudgementAnswer]:
    """What each judge said of a rollout."""
    rollout = get_rollout(session, rollout_id)
    found = queries.judgements_of_rollout(session, rollout.id)
    return Page(items=[JudgementAnswer.of(judgement) for _, judgement in found])
