"""What judges alone read and write: the rollouts that one has not judged yet, and its judgements."""

import uuid
from collections.abc import Iterable
from typing import Any

import orjson
from sqlalchemy.orm import Session

from backend.core.session import transaction
from backend.domain.graders.judges import JudgeConfiguration
from backend.domain.text import json_text
from backend.errors import Conflict
from backend.graders.rollout_choice import completed_rollouts, count_of, still_without
from backend.graders.tables import Judge, Judgement
from backend.runs.tables import Run
from workers.graders.judge import Judged
from workers.storage import graders


class JudgeIsGone(Conflict):
    """The judge or its policy was deleted."""


Appointed = graders.Asked[JudgeConfiguration]


def appoint(judge_id: uuid.UUID) -> Appointed:
    return graders.take(Judge, judge_id, JudgeConfiguration, JudgeIsGone)


def to_judge(session: Session, run: Run, judge_id: uuid.UUID, where: str) -> tuple[int, list[uuid.UUID]]:
    """How many rollouts are wanted, and which of them have no completed judgement yet, in their order."""
    wanted = completed_rollouts(session, run, where)
    return count_of(session, wanted), list(session.scalars(still_without(wanted, Judgement, judge_id)))


def store(run_id: uuid.UUID, judge_id: uuid.UUID, batch: Iterable[tuple[uuid.UUID, Judged]]) -> None:
    with transaction() as session:
        rows = [_row(run_id, judge_id, rollout_id, judged) for rollout_id, judged in batch]
        graders.store_said(session, Judgement, rows)


def _row(run_id: uuid.UUID, judge_id: uuid.UUID, rollout_id: uuid.UUID, judged: Judged) -> dict[str, Any]:
    return graders.row_of(run_id, rollout_id, judged, has_answer=judged.score is not None) | {
        "judge_id": judge_id,
        "score": judged.score,
        "spread": judged.spread,
        "verdicts": orjson.loads(json_text(judged.verdicts)),
    }
