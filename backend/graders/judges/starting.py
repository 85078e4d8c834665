"""Letting a judge look at a part of a run."""

import uuid

from sqlalchemy.orm import Session

from backend.errors import InvalidInput
from backend.graders.judges.queries import get_judge
from backend.graders.judges.requests import JudgingRequest
from backend.graders.judges.service import start_judging, stop_judging
from backend.graders.rollout_choice import completed_rollouts, count_of, told_nothing
from backend.graders.tables import Judge
from backend.runs.tables import Run
from backend.web.identity import Actor


def start(session: Session, actor: Actor, run: Run, request: JudgingRequest) -> Judge:
    """Raises InvalidInput where the filter cannot be read or nothing passes it."""
    judge = get_judge(session, request.judge_id)
    if not count_of(session, completed_rollouts(session, run, request.where)):
        what = told_nothing(request.where)
        raise InvalidInput(what, fields={"where": what})
    start_judging(session, actor, run, judge, request.where)
    return judge


def stop(session: Session, actor: Actor, run: Run, judge_id: uuid.UUID) -> Judge:
    judge = get_judge(session, judge_id)
    stop_judging(session, actor, run, judge)
    return judge
