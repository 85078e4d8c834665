"""What those who answer questions alone write: the answers with their flags."""

import uuid
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import orjson

from backend.core.session import transaction
from backend.domain.graders.citations import Found
from backend.domain.graders.questions import QuestionConfiguration
from backend.domain.text import json_text, plain_text
from backend.errors import Conflict
from backend.graders.questions.flagging import raise_flags
from backend.graders.tables import Question, QuestionAnswer
from workers.graders.questioner import Answered
from workers.storage import graders

MAX_RAW = 20_000


class QuestionIsGone(Conflict):
    """The question or its policy was deleted."""


Put = graders.Asked[QuestionConfiguration]


def put(question_id: uuid.UUID) -> Put:
    return graders.take(Question, question_id, QuestionConfiguration, QuestionIsGone)


def store(run_id: uuid.UUID, known: Put, batch: Sequence[tuple[uuid.UUID, Answered]], *, with_flags: bool) -> None:
    with transaction() as session:
        rows = [_row(run_id, known.id, rollout_id, answered) for rollout_id, answered in batch]
        there = graders.store_said(session, QuestionAnswer, rows)
        if with_flags and (question := session.get(Question, known.id)):
            raise_flags(session, run_id, question, rollout_ids=there)


def stored(found: Sequence[Found]) -> list[dict[str, Any]]:
    """Citations as rows and findings keep them."""
    return [asdict(each) | {"part": str(each.part)} for each in found]


def _row(run_id: uuid.UUID, question_id: uuid.UUID, rollout_id: uuid.UUID, answered: Answered) -> dict[str, Any]:
    answer = answered.answer
    replies = answered.exchange.replies if answered.exchange else []
    return graders.row_of(run_id, rollout_id, answered, has_answer=answer is not None) | {
        "question_id": question_id,
        "answer": answer.answer if answer else None,
        "value": answer.value if answer else None,
        "confidence": answer.confidence if answer else None,
        "reason": answer.reason if answer else "",
        "citations": orjson.loads(json_text(stored(answered.found))),
        "dropped": answered.dropped,
        "raw": plain_text(replies[-1])[:MAX_RAW] if answer is None and replies else None,
    }
