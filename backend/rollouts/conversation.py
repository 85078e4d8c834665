"""A stored conversation in parts, so that the page of the longest rollout opens as fast as that of a short one.

Postgres cuts the messages and steps of a part out of the stored JSON. Only the roles of all messages are read at once.
"""

import uuid
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlalchemy import Integer, Text, case, cast, func, or_, select, true
from sqlalchemy.dialects.postgresql import JSONB, JSONPATH
from sqlalchemy.orm import Session

from backend.domain.environments.views import MAX_HISTORY
from backend.rollouts.tables import Rollout

PART_MESSAGES = 40
SMALL_RECORD = 300_000
"""Stored bytes up to which a page also holds the raw record and the tokens."""
MAX_FOUND = 100
MAX_SEARCHED = 200
"""Characters of a text to find."""
_AROUND = 60
"""Characters of an excerpt before the text that was found."""


@dataclass(frozen=True)
class Outline:
    """Who wrote each message of a conversation, without the texts."""

    roles: Sequence[str]
    stored_bytes: int
    """Compressed size of messages, steps and tokens."""
    token_bytes: int
    messages: Sequence[Mapping[str, Any]] = ()
    """The first messages, if they were read along."""
    steps: Sequence[Mapping[str, Any]] = ()
    """At least the steps of these messages."""

    @cached_property
    def replies(self) -> list[int]:
        """Places of the policy's messages."""
        return [place for place, role in enumerate(self.roles) if role == "assistant"]

    def turns_before(self, place: int) -> int:
        return bisect_left(self.replies, place)

    def parts(self) -> list[range]:
        """The messages in parts. A short last part belongs to the one before."""
        count = len(self.roles)
        starts = list(range(0, max(1, count - PART_MESSAGES // 2), PART_MESSAGES))
        return [range(start, stop) for start, stop in zip(starts, [*starts[1:], count], strict=True)]

    def anchor(self, place: int) -> str:
        """The id of a message on the page."""
        return f"turn-{self.turns_before(place)}" if self.roles[place] == "assistant" else f"message-{place}"


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message that contains the text, with the part of it around the first occurrence."""

    place: int
    turn: int
    role: str
    before: str
    text: str
    after: str


def read_outline(session: Session, rollout_id: uuid.UUID, *, with_first_part: bool = False) -> Outline:
    """`with_first_part`: also read the first messages, for less than a second statement would take.

    Postgres decompresses a value for each function that reads it. An empty array is appended, once, to read it twice.
    """
    tokens = func.coalesce(func.pg_column_size(Rollout.tokens), 0)
    size = func.pg_column_size(Rollout.messages) + func.pg_column_size(Rollout.steps) + tokens
    whole = select(Rollout.messages.op("||")(cast([], JSONB)).label("messages"), Rollout.steps, size, tokens)
    whole = whole.where(Rollout.id == rollout_id)
    stored = whole.offset(0).subquery()  # the planner does not merge a statement with an offset
    messages, steps, *sizes = stored.c
    first = cast(f"$[0 to {PART_MESSAGES * 3 // 2}]", JSONPATH)
    columns = [func.jsonb_path_query_array(messages, cast("$[*].role", JSONPATH)), *sizes]
    if with_first_part:
        columns += [func.jsonb_path_query_array(messages, first), func.jsonb_path_query_array(steps, first)]
    return Outline(*session.execute(select(*columns)).one())


def read_part(
    session: Session, rollout_id: uuid.UUID, outline: Outline, part: range, *, with_history: bool
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]], int]:
    """Return the messages of a part, the steps that belong to them, and the index of the first of these steps."""
    first, last = outline.turns_before(part.start), outline.turns_before(part.stop)
    first = max(0, first - (MAX_HISTORY if with_history else 1))
    if part.start == 0 and part.stop <= len(outline.messages):
        return list(outline.messages[: part.stop]), list(outline.steps[:last]), 0
    messages, steps = (
        func.jsonb_path_query_array(column, cast(f"$[{start} to {max(start, stop - 1)}]", JSONPATH))
        for column, start, stop in ((Rollout.messages, part.start, part.stop), (Rollout.steps, first, last))
    )
    row = session.execute(select(messages, steps).where(Rollout.id == rollout_id)).one()
    return list(row[0]), list(row[1]), first


def find_messages(session: Session, rollout_id: uuid.UUID, text: str) -> list[FoundMessage]:
    """Return the first messages whose text or reasoning contains the text, regardless of case."""
    text = text.strip()[:MAX_SEARCHED]
    if not text:
        return []
    messages = (
        func.jsonb_array_elements(Rollout.messages).table_valued("value", with_ordinality="number").render_derived()
    )
    content = func.coalesce(messages.c.value.op("->>")("content"), "", type_=Text)
    reasoning = func.coalesce(messages.c.value.op("->>")("reasoning"), "", type_=Text)
    role = func.coalesce(messages.c.value.op("->>")("role"), "user", type_=Text)
    turn = func.sum(case((role == "assistant", 1), else_=0)).over(order_by=messages.c.number)
    columns = (cast(messages.c.number, Integer).label("number"), role.label("role"), turn.label("turn"))
    each = (
        select(*columns, content.label("content"), reasoning.label("reasoning"))
        .select_from(Rollout)
        .join(messages, true())
        .where(Rollout.id == rollout_id)
        .subquery()
    )
    needle = text.lower()
    at_content = func.strpos(func.lower(each.c.content), needle)
    at_reasoning = func.strpos(func.lower(each.c.reasoning), needle)
    where = case((at_content > 0, each.c.content), else_=each.c.reasoning)
    at = case((at_content > 0, at_content), else_=at_reasoning)
    start = func.greatest(1, at - _AROUND)
    statement = (
        select(each.c.number, each.c.turn, each.c.role, func.substr(where, start, _AROUND * 4), at - start)
        .where(or_(at_content > 0, at_reasoning > 0))
        .order_by(each.c.number)
        .limit(MAX_FOUND)
    )
    found = []
    for number, turns, said_by, excerpt, offset in session.execute(statement):
        before, match, after = excerpt[:offset], excerpt[offset : offset + len(text)], excerpt[offset + len(text) :]
        place = int(number) - 1
        found.append(FoundMessage(place, int(turns) - (said_by == "assistant"), said_by, before, match, after))
    return found
