"""Episodes that people marked as worth imitating, as lessons of the SFT warm-up."""

import uuid
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import undefer

from backend.db.models import Group, Rollout, Run, Task
from backend.db.session import transaction
from backend.domain.vocabulary import RolloutStatus, Split
from workers.models.chat import ChatTokens
from workers.training.lessons import BrokenStep, Lesson


def demonstration_lessons(version_id: uuid.UUID, chat: ChatTokens) -> list[Lesson]:
    """Of completed episodes on training tasks of this version, oldest first; those that are too long are left out."""
    longest = min(int(chat.tokenizer.model_max_length or 0) or 10**9, 10**9)
    lessons = [lesson_of_episode(messages, steps, chat) for messages, steps in _episodes(version_id)]
    return [lesson for lesson in lessons if lesson is not None and len(lesson.tokens) <= longest]


def mixed(scripted: Sequence[Lesson], shown: Sequence[Lesson], share: float) -> list[Lesson]:
    """As many lessons as were scripted, this share of them by people, repeated where they are few."""
    if not shown:
        raise BrokenStep("no marked episode of this version fits: mark some, or set sft.demonstrations to 0")
    count = round(len(scripted) * share)
    return [*scripted[: len(scripted) - count], *islice(cycle(shown), count)]


def lesson_of_episode(
    messages: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]], chat: ChatTokens
) -> Lesson | None:
    """The conversation's tokens; only replies that were understood are imitated. None where there is no such reply."""
    said = [dict(message) for message in messages]
    turns = [number for number, message in enumerate(said) if message["role"] == "assistant"][: len(steps)]
    if not turns:
        return None
    prompt = list(chat.opening(said[: turns[0]]))
    completion: list[int] = []
    mask: list[int] = []
    for ordinal, turn in enumerate(turns):
        if ordinal:
            between = chat.continuation(said[turns[ordinal - 1] + 1 : turn])
            completion += between
            mask += [0] * len(between)
        reply = chat.reply(str(said[turn]["content"]))
        completion += reply
        mask += [int(steps[ordinal]["action"] is not None)] * len(reply)
    return Lesson(prompt, completion, mask) if any(mask) else None


def _episodes(version_id: uuid.UUID) -> list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    statement = (
        select(Rollout)
        .join(Run, Run.id == Rollout.run_id)
        .join(Group, Group.id == Rollout.group_id)
        .join(Task, Task.id == Group.task_id)
        .where(
            Run.version_id == version_id,
            Rollout.is_demonstration,
            Rollout.status == RolloutStatus.COMPLETED,
            Task.split == Split.TRAIN,
        )
        .options(undefer(Rollout.messages), undefer(Rollout.steps))
        .order_by(Rollout.created_at, Rollout.id)
    )
    with transaction() as session:
        return [(row.messages, row.steps) for row in session.scalars(statement)]
