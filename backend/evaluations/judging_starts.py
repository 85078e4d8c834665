"""Letting a judge look at a part of a run: what part it is, is said in the language of filters."""

import uuid

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.db.models import Judge, Rollout, Run
from backend.domain.vocabulary import RolloutStatus
from backend.errors import InvalidInput
from backend.evaluations.rollouts.queries import matching
from backend.judging.judges.forms import JudgingRequest
from backend.judging.judges.queries import get_judge
from backend.judging.judges.service import start_judging, stop_judging
from backend.web.identity import Actor


def start(session: Session, actor: Actor, run: Run, request: JudgingRequest) -> Judge:
    """Raises InvalidInput where the filter cannot be read or nothing passes it."""
    judge = get_judge(session, request.judge_id)
    wanted = select(func.count(Rollout.id)).where(Rollout.run_id == run.id, Rollout.status == RolloutStatus.COMPLETED)
    if request.where:
        wanted = wanted.where(Rollout.id.in_(matching(session, run, request.where)))
    if not session.scalar(wanted):
        what = "No completed rollout passes this." if request.where else "This run has no completed rollout yet."
        raise InvalidInput(what, fields={"where": what})
    start_judging(session, actor, run, judge, request.where)
    return judge


def stop(session: Session, actor: Actor, run: Run, judge_id: uuid.UUID) -> Judge:
    judge = get_judge(session, judge_id)
    stop_judging(session, actor, run, judge)
    return judge
