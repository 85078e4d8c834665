"""What those who answer questions alone write: the answers with their flags."""

import uuid
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import orjson

from backend.db.models import Question, QuestionAnswer
from backend.db.session import transaction
from backend.domain.citations import Found
from backend.domain.questions import QuestionConfiguration
from backend.domain.text import json_text, plain_text
from backend.errors import Conflict
from backend.judging.questions.flagging import raise_flags
from workers.jobs import inquiry_rows
from workers.judging.asking.questioner import Answered

MAX_RAW = 20_000


class QuestionIsGone(Conflict):
    """The question or its policy was deleted."""


Put = inquiry_rows.Asked[QuestionConfiguration]


def put(question_id: uuid.UUID) -> Put:
    return inquiry_rows.take(Question, question_id, QuestionConfiguration, QuestionIsGone)


def store(run_id: uuid.UUID, known: Put, batch: Sequence[tuple[uuid.UUID, Answered]], *, with_flags: bool) -> None:
    with transaction() as session:
        rows = [_row(run_id, known.id, rollout_id, answered) for rollout_id, answered in batch]
        there = inquiry_rows.store_said(session, QuestionAnswer, rows)
        if with_flags and (question := session.get(Question, known.id)):
            raise_flags(session, run_id, question, rollout_ids=there)


def stored(found: Sequence[Found]) -> list[dict[str, Any]]:
    """Citations as rows and findings keep them."""
    return [asdict(each) | {"part": str(each.part)} for each in found]


def _row(run_id: uuid.UUID, question_id: uuid.UUID, rollout_id: uuid.UUID, answered: Answered) -> dict[str, Any]:
    answer = answered.answer
    replies = answered.exchange.replies if answered.exchange else []
    return inquiry_rows.row_of(run_id, rollout_id, answered, has_answer=answer is not None) | {
        "question_id": question_id,
        "answer": answer.answer if answer else None,
        "value": answer.value if answer else None,
        "confidence": answer.confidence if answer else None,
        "reason": answer.reason if answer else "",
        "citations": orjson.loads(json_text(stored(answered.found))),
        "dropped": answered.dropped,
        "raw": plain_text(replies[-1])[:MAX_RAW] if answer is None and replies else None,
    }
