"""Stored conversations as lessons of the SFT warm-up, and lessons of several sources as one list."""

from collections.abc import Sequence
from itertools import cycle, islice

from backend.domain.training.examples import Conversation
from workers.models.chat import ChatTokens
from workers.training.examples import TrainingExample


def lesson_of_conversation(conversation: Conversation, chat: ChatTokens) -> TrainingExample | None:
    """The tokens as the policy will see them; only replies that were understood are imitated. None where there is no
    such reply."""
    said = conversation.messages
    turns = [number for number, message in enumerate(said) if message["role"] == "assistant"]
    turns = turns[: len(conversation.learned)]
    if not any(conversation.learned[: len(turns)]):
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
        mask += [int(conversation.learned[ordinal])] * len(reply)
    return TrainingExample(prompt, completion, mask)


def mixed(
    main: Sequence[TrainingExample], others: Sequence[tuple[Sequence[TrainingExample], float]]
) -> list[TrainingExample]:
    """As many lessons as the main source has, these shares of them from others, repeated where they are few."""
    counts = [round(len(main) * share) for _, share in others]
    kept = list(main[: max(0, len(main) - sum(counts))])
    for (lessons, _), count in zip(others, counts, strict=True):
        kept += islice(cycle(lessons), count)
    return kept
