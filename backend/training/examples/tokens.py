"""How long a conversation is for the chosen model: by its tokenizer where it is at hand, else by its characters."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.core import artifacts
from backend.domain.training.configuration import ModelChoice
from backend.domain.training.examples import TokenCount
from backend.domain.training.sft_data import about_tokens
from backend.training.initial_weights import stored_context

_MARKS = 2
"""Tokens that a chat template adds to a message, at least: who speaks, and its end."""
_ABOUT = "about, 4 characters each"
_MOST_BYTES = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class Measure:
    """How tokens are counted, and how many fit."""

    count: TokenCount
    told: str
    """What the numbers are, for a person."""
    context: int | None = None


def measure_of(session: Session, choice: ModelChoice) -> Measure:
    match choice.source:
        case "checkpoint" if choice.checkpoint is not None:
            return _of_checkpoint(session, choice.checkpoint)
        case "scratch":
            return Measure(about_tokens, _ABOUT, choice.context)
        case _:
            return Measure(about_tokens, _ABOUT)


def _of_checkpoint(session: Session, checkpoint_id: uuid.UUID) -> Measure:
    row = session.get(Checkpoint, checkpoint_id)
    if row is None or row.pruned_at is not None or find_spec("tokenizers") is None:
        return Measure(about_tokens, _ABOUT)
    try:
        count = _counter(_read(f"{row.artifact}/tokenizer.json"))
    except (OSError, ValueError):
        return Measure(about_tokens, _ABOUT)
    return Measure(count, "by the checkpoint's tokenizer", stored_context(row.artifact))


def _counter(text: bytes) -> TokenCount:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(text.decode())
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(str(error)) from error

    def count(messages: Sequence[Mapping[str, Any]]) -> int:
        texts = [str(message["content"]) for message in messages]
        return sum(len(found.ids) + _MARKS for found in tokenizer.encode_batch(texts, add_special_tokens=False))

    return count


def _read(key: str) -> bytes:
    with artifacts.open_file(key) as file:
        return file.read(_MOST_BYTES)
