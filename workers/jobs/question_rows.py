"""What those who answer questions read and write: the question with its policy, and the answers with their flags."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson
from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import joinedload

from backend.db.models import Question, QuestionAnswer, Rollout
from backend.db.session import transaction
from backend.domain.citations import Found
from backend.domain.ids import new_id
from backend.domain.questions import QuestionConfiguration
from backend.domain.text import plain_text
from backend.domain.vocabulary import JudgementStatus, PolicyKind
from backend.errors import Conflict
from backend.evaluations.policies.secrets import secret_of
from backend.events import announce, judges_topic
from backend.judging.questions.flagging import raise_flags
from workers.jobs.rollout_rows import json_text
from workers.judging.asking.questioner import Answered

MAX_RAW = 20_000


class QuestionIsGone(Conflict):
    """The question or its policy was deleted."""


@dataclass(frozen=True, slots=True)
class Put:
    """A question with all that is needed to ask it."""

    question_id: uuid.UUID
    name: str
    asked: QuestionConfiguration
    kind: PolicyKind
    policy: Mapping[str, Any]
    secret: str | None = field(repr=False)

    @property
    def concurrency(self) -> int:
        """As the question says, and never more than the endpoint bears."""
        most = (self.policy.get("limits") or {}).get("concurrency")
        return min(self.asked.concurrency, int(most)) if most else self.asked.concurrency


def put(question_id: uuid.UUID) -> Put:
    with transaction() as session:
        question = session.get(Question, question_id, options=[joinedload(Question.policy)])
        if question is None or question.deleted_at is not None or question.policy.deleted_at is not None:
            raise QuestionIsGone
        policy = question.policy
        asked = QuestionConfiguration.model_validate(question.configuration)
        return Put(question.id, question.name, asked, policy.kind, policy.configuration, secret_of(policy))


def store(run_id: uuid.UUID, known: Put, batch: Sequence[tuple[uuid.UUID, Answered]], *, with_flags: bool) -> None:
    """One answer a rollout; a failed one gives way to a new one, an answer stays."""
    rows = [_row(run_id, known.question_id, rollout_id, answered) for rollout_id, answered in batch]
    new = insert(QuestionAnswer)
    fixed = {"id", "question_id", "run_id", "rollout_id"}
    statement = new.on_conflict_do_update(
        index_elements=["question_id", "rollout_id"],
        set_={name: new.excluded[name] for name in rows[0] if name not in fixed},
        where=QuestionAnswer.status == JudgementStatus.FAILED,
    )
    with transaction() as session:
        wanted = select(Rollout.id).where(Rollout.id.in_([row["rollout_id"] for row in rows]))
        there = set(session.scalars(wanted))
        if kept := [row for row in rows if row["rollout_id"] in there]:
            session.execute(statement, kept)
            announce(session, judges_topic(run_id))
        if with_flags and (question := session.get(Question, known.question_id)):
            raise_flags(session, run_id, question, rollout_ids=there)


def stored(found: Sequence[Found]) -> list[dict[str, Any]]:
    """Citations as rows and findings keep them."""
    return [asdict(each) | {"part": str(each.part)} for each in found]


def _row(run_id: uuid.UUID, question_id: uuid.UUID, rollout_id: uuid.UUID, answered: Answered) -> dict[str, Any]:
    answer = answered.answer
    replies = answered.exchange.replies if answered.exchange else []
    return {
        "id": new_id(),
        "question_id": question_id,
        "run_id": run_id,
        "rollout_id": rollout_id,
        "status": JudgementStatus.FAILED if answer is None else JudgementStatus.COMPLETED,
        "answer": answer.answer if answer else None,
        "value": answer.value if answer else None,
        "confidence": answer.confidence if answer else None,
        "reason": answer.reason if answer else "",
        "citations": orjson.loads(json_text(stored(answered.found))),
        "dropped": answered.dropped,
        "error_message": answered.error or None,
        "raw": plain_text(replies[-1])[:MAX_RAW] if answer is None and replies else None,
        "tokens_in": answered.tokens_in,
        "tokens_out": answered.tokens_out,
        "cost": answered.cost,
    }
