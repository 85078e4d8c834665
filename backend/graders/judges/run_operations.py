"""The JSON API of judges' work on a run."""

import uuid

from fastapi import APIRouter
from sqlalchemy import select

from backend.graders.judges import queries as judge_queries
from backend.graders.judges.requests import JudgingRequest
from backend.graders.judges.responses import JudgedRunAnswer, JudgementAnswer
from backend.graders.judges.starting import start, stop
from backend.graders.tables import Judgement
from backend.runs import queries
from backend.web.dependencies import Author, SessionDep, Viewer
from backend.web.paging import After, Key, Limit, Page, slice_of

router = APIRouter(prefix="/api/v1", tags=["judges"])


@router.get("/runs/{run_id}/judges")
def judges_of_run(run_id: uuid.UUID, session: SessionDep, _: Viewer) -> Page[JudgedRunAnswer]:
    """Every judge that looked at the run, with coverage, mean, cost, and agreement with people."""
    found = judge_queries.judging_of_run(session, queries.get_run(session, run_id))
    return Page(items=[JudgedRunAnswer.of(judged) for judged in found])


@router.post("/runs/{run_id}/judges", status_code=202)
def start_judging(run_id: uuid.UUID, session: SessionDep, actor: Author, request: JudgingRequest) -> JudgedRunAnswer:
    """Let a judge look at the run's completed rollouts. What it judged already is kept."""
    run = queries.get_run(session, run_id)
    judge = start(session, actor, run, request)
    found = judge_queries.judging_of_run(session, run)
    return JudgedRunAnswer.of(next(judged for judged in found if judged.judge.id == judge.id))


@router.post("/runs/{run_id}/judges/{judge_id}/stop")
def stop_judging(run_id: uuid.UUID, judge_id: uuid.UUID, session: SessionDep, actor: Author) -> JudgedRunAnswer:
    """Ask it to stop after what is in flight; what was judged stays."""
    run = queries.get_run(session, run_id)
    stop(session, actor, run, judge_id)
    found = judge_queries.judging_of_run(session, run)
    return JudgedRunAnswer.of(next(judged for judged in found if judged.judge.id == judge_id))


@router.get("/runs/{run_id}/judges/{judge_id}/judgements")
def judgements(
    run_id: uuid.UUID, judge_id: uuid.UUID, session: SessionDep, _: Viewer, after: After = None, limit: Limit = 100
) -> Page[JudgementAnswer]:
    """What one judge said of each rollout of a run, newest first."""
    run = queries.get_run(session, run_id)
    judge = judge_queries.get_judge(session, judge_id)
    statement = select(Judgement).where(Judgement.run_id == run.id, Judgement.judge_id == judge.id)
    found = slice_of(session, statement, (Key(Judgement.id),), after=after, limit=limit)
    return Page(items=[JudgementAnswer.of(judgement) for judgement in found.items], next=found.next)
