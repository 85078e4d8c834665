"""Finding text in conversations: by the index as far as housekeeping has come, behind it in the conversations."""

from typing import Any

from sqlalchemy import ColumnElement, Text, and_, column, func, literal, or_, select
from sqlalchemy.dialects.postgresql import JSONB

from backend.rollouts.tables import Rollout, RolloutText
from backend.runs.tables import Run

MAX_CHARACTERS = 1_000_000
"""Of a conversation, that can be found."""


def body_of(messages: Any) -> ColumnElement[str]:
    """What is said in messages, line by line, in lower case: what the index holds."""
    message = func.jsonb_array_elements(messages).table_valued(column("value", JSONB)).alias("message")
    said = func.concat_ws("\n", message.c.value["reasoning"].astext, message.c.value["content"].astext)
    whole = select(func.string_agg(said, "\n")).select_from(message).scalar_subquery()
    return func.lower(func.left(func.coalesce(whole, ""), MAX_CHARACTERS))


def indexed_to(run: Run) -> Any:
    """The number of the run's last rollout whose text is in the index, as a subquery."""
    last = select(func.max(RolloutText.seq)).where(RolloutText.run_id == run.id)
    return func.coalesce(last.scalar_subquery(), 0)


def says(run: Run, text: str, indexed: int) -> ColumnElement[bool]:
    """Somewhere in the conversation, in upper or lower case. Rollouts up to number `indexed` are in the index."""
    pattern = func.lower(literal(f"%{_escaped(text)}%", Text))
    found = select(RolloutText.seq).where(
        RolloutText.run_id == run.id, RolloutText.seq == Rollout.seq, RolloutText.body.like(pattern, escape="\\")
    )
    is_found = found.exists().correlate(Rollout)
    if indexed >= run.next_seq - 1:
        return is_found
    behind = and_(Rollout.seq > indexed, body_of(Rollout.messages).like(pattern, escape="\\"))
    return or_(is_found, behind)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
