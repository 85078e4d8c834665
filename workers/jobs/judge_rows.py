"""What judges alone read and write: the rollouts that one has not judged yet, and its judgements."""

import uuid
from collections.abc import Iterable
from typing import Any

import orjson
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.db.models import Judge, Judgement, Rollout, Run
from backend.db.session import transaction
from backend.domain.ids import new_id
from backend.domain.judges import JudgeConfiguration
from backend.domain.vocabulary import JudgementStatus, RolloutStatus
from backend.errors import Conflict
from backend.evaluations.rollouts.queries import matching
from workers.jobs import inquiry_rows
from workers.jobs.rollout_rows import json_text
from workers.judging.judge import Judged


class JudgeIsGone(Conflict):
    """The judge or its policy was deleted."""


Appointed = inquiry_rows.Asked[JudgeConfiguration]


def appoint(judge_id: uuid.UUID) -> Appointed:
    return inquiry_rows.take(Judge, judge_id, JudgeConfiguration, JudgeIsGone)


def to_judge(session: Session, run: Run, judge_id: uuid.UUID, where: str) -> tuple[int, list[uuid.UUID]]:
    """How many rollouts are wanted, and which of them have no completed judgement yet, in their order."""
    wanted = [Rollout.run_id == run.id, Rollout.status == RolloutStatus.COMPLETED]
    if where.strip():
        wanted.append(Rollout.id.in_(matching(session, run, where)))
    is_judged = (
        select(Judgement.id)
        .where(
            Judgement.judge_id == judge_id,
            Judgement.rollout_id == Rollout.id,
            Judgement.status == JudgementStatus.COMPLETED,
        )
        .exists()
    )
    total = session.scalar(select(func.count(Rollout.id)).where(*wanted)) or 0
    missing = session.scalars(select(Rollout.id).where(*wanted, ~is_judged).order_by(Rollout.seq)).all()
    return total, list(missing)


def store(run_id: uuid.UUID, judge_id: uuid.UUID, batch: Iterable[tuple[uuid.UUID, Judged]]) -> None:
    with transaction() as session:
        rows = [_row(run_id, judge_id, rollout_id, judged) for rollout_id, judged in batch]
        inquiry_rows.store_said(session, Judgement, rows)


def _row(run_id: uuid.UUID, judge_id: uuid.UUID, rollout_id: uuid.UUID, judged: Judged) -> dict[str, Any]:
    status = JudgementStatus.FAILED if judged.score is None else JudgementStatus.COMPLETED
    return {
        "id": new_id(),
        "judge_id": judge_id,
        "run_id": run_id,
        "rollout_id": rollout_id,
        "status": status,
        "score": judged.score,
        "spread": judged.spread,
        "verdicts": orjson.loads(json_text(judged.verdicts)),
        "error_message": judged.error or None,
        "tokens_in": judged.tokens_in,
        "tokens_out": judged.tokens_out,
        "cost": judged.cost,
    }
