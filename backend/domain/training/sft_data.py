"""Conversations as training data: chat messages, each conversation once."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backend.domain.rollouts.conversation import to_foreign

Messages = Sequence[Mapping[str, Any]]
CHARACTERS_PER_TOKEN = 4
"""A rule of thumb, where no tokenizer is at hand."""
_SPACE = re.compile(r"\s+")
_SHAPE = re.compile(r"[\W\d_]+")


def chat_of(messages: Messages) -> list[dict[str, Any]]:
    """As TRL and chat templates take it."""
    return [to_foreign(message) for message in messages]


def has_reply(messages: Messages) -> bool:
    return any(message.get("role") == "assistant" for message in messages)


@dataclass
class Seen:
    """Which conversations came already."""

    near: int = 0
    """New ones that differ from an earlier one in numbers, case and punctuation alone."""
    _exact: set[bytes] = field(default_factory=set)
    _shapes: set[bytes] = field(default_factory=set)

    def is_new(self, messages: Messages) -> bool:
        """Compared by roles and texts, whatever the white space."""
        exact = _digest(messages, _SPACE)
        if exact in self._exact:
            return False
        self._exact.add(exact)
        shape = _digest(messages, _SHAPE)
        self.near += shape in self._shapes
        self._shapes.add(shape)
        return True


def _digest(messages: Messages, pattern: re.Pattern[str]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for message in messages:
        text = pattern.sub(" ", str(message.get("content", ""))).strip()
        digest.update(
            f"{message.get('role')}\0{text if pattern is _SPACE else text.casefold()}\0".encode("utf-8", "replace")
        )
    return digest.digest()


def about_tokens(messages: Messages) -> int:
    """Roughly, from the number of characters."""
    return sum(len(str(message.get("content", ""))) for message in messages) // CHARACTERS_PER_TOKEN
