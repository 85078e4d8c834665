"""Rollouts as text on pages: tokens with their probabilities, and two conversations with their differences marked."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.core.artifacts import open_file
from backend.domain.vocabulary import PolicyKind
from backend.rollouts.tables import Rollout
from backend.web.transcripts import Entry, Piece

MAX_TOKENS = 4000
LEAST_SURE = 20
MAX_COMPARED_WORDS = 4000
"""Longer replies are marked whole, because matching takes time quadratic in their words."""
_SPACES = str.maketrans({"Ġ": " ", "Ċ": "\n", "▁": " "})
"""How tokenizers write spaces and line breaks."""
_HEAT = (0.95, 0.8, 0.5, 0.2, 0.05)
"""Probabilities at which the shade of a token changes."""
_WORD = re.compile(r"\s*\S+|\s+$")


@dataclass(frozen=True, slots=True)
class TokenText:
    """One token after the first prompt."""

    text: str
    is_policy: bool
    """False: the environment wrote it, and it is not part of the loss."""
    probability: float | None
    heat: int
    """0 (the policy was sure) to 5 (an unlikely token)."""
    begins_turn: bool = False
    """The first token of a later reply."""


def token_view(session: Session, rollout: Rollout) -> dict[str, object] | None:
    """Tokens from stored ids, or from the texts that an endpoint reported; None if neither is stored."""
    stored = rollout.tokens or {}
    if ids := stored.get("completion"):
        policy, vocabulary = rollout.run.policy, dict[int, str]()
        if policy is not None and policy.kind is PolicyKind.LOCAL:
            own = select(Checkpoint.artifact).where(Checkpoint.policy_id == policy.id, Checkpoint.pruned_at.is_(None))
            artifact = session.scalar(own.order_by(Checkpoint.id).limit(1))
            vocabulary = _read_vocabulary(artifact) if artifact else {}
        texts = [vocabulary.get(token, f"⟨{token}⟩") for token in ids[:MAX_TOKENS]]
        count, has_text = len(ids), bool(vocabulary)
    elif stored.get("texts"):
        texts = [str(text) for text in stored["texts"][:MAX_TOKENS]]
        count, has_text = len(stored["texts"]), True
    else:
        return None

    mask = stored.get("mask") or [1] * count
    logprobs = stored.get("logprobs") or [None] * count
    turns = set(stored.get("turns") or ())
    tokens = []
    for number, (text, is_policy, logprob) in enumerate(zip(texts, mask, logprobs, strict=False)):
        probability = math.exp(min(0.0, logprob)) if is_policy and logprob is not None else None
        heat = 0 if probability is None else sum(probability < limit for limit in _HEAT)
        tokens.append(TokenText(text, bool(is_policy), probability, heat, number in turns and number > 0))
    sure = [(place, token) for place, token in enumerate(tokens) if token.probability is not None]
    known = [value for value, is_policy in zip(logprobs, mask, strict=False) if is_policy and value is not None]
    return {
        "tokens": tokens,
        "prompt_count": len(stored.get("prompt") or ()),
        "policy_count": sum(mask),
        "mean_logprob": math.fsum(known) / len(known) if known else None,  # over the policy's tokens, in nats
        "is_cut": count > MAX_TOKENS,
        "has_text": has_text,  # if not, the tokenizer is not available and ids are shown
        "turn_advantages": stored.get("turn_advantages") or [],  # if training assigned credit by turn
        "least_sure": sorted(sure, key=lambda pair: pair[1].probability or 0.0)[:LEAST_SURE],
    }


@lru_cache(maxsize=16)
def _read_vocabulary(artifact: str) -> dict[int, str]:
    """Text by token id from the tokenizer of a checkpoint; empty if it cannot be read."""
    try:
        with open_file(f"{artifact}/tokenizer.json") as file:
            stored: dict[str, Any] = json.load(file)
    except (OSError, ValueError):
        return {}
    model = stored.get("model", {}).get("vocab", {})
    pieces = model.items() if isinstance(model, dict) else ((entry[0], index) for index, entry in enumerate(model))
    vocabulary = {index: str(piece).translate(_SPACES) for piece, index in pieces}
    return vocabulary | {added["id"]: added["content"] for added in stored.get("added_tokens", ())}


def mark_differences(before: Sequence[Entry], after: Sequence[Entry]) -> tuple[list[Entry], list[Entry], int | None]:
    """Mark the words of the replies that only one conversation has. Returns also the first turn that differs."""
    sides = [{entry.turn: entry for entry in entries if entry.turn is not None} for entries in (before, after)]
    pieces: dict[int, tuple[list[Piece], list[Piece]]] = {}
    for turn in sides[0].keys() & sides[1].keys():
        one, other = ("".join(piece.text for piece in side[turn].pieces) for side in sides)
        if one != other:
            pieces[turn] = _compare_words(one, other)
    first = min([*pieces, *(sides[0].keys() ^ sides[1].keys())], default=None)
    marked_before, marked_after = (
        [
            replace(entry, pieces=pieces[entry.turn][side]) if entry.turn in pieces and not entry.calls else entry
            for entry in entries
        ]
        for side, entries in enumerate((before, after))
    )
    return marked_before, marked_after, first


def _compare_words(before: str, after: str) -> tuple[list[Piece], list[Piece]]:
    words_before, words_after = _WORD.findall(before), _WORD.findall(after)
    if max(len(words_before), len(words_after)) > MAX_COMPARED_WORDS:
        return [Piece(before, is_marked=True)], [Piece(after, is_marked=True)]

    def cut(words: Sequence[str], same: Sequence[tuple[int, int]]) -> list[Piece]:
        """Mark everything between the stretches that both sides have."""
        pieces: list[Piece] = []
        position = 0
        for start, size in same:
            if start > position:
                pieces.append(Piece("".join(words[position:start]), is_marked=True))
            if size:
                pieces.append(Piece("".join(words[start : start + size])))
            position = start + size
        return pieces or [Piece("")]

    blocks = SequenceMatcher(None, words_before, words_after, autojunk=False).get_matching_blocks()
    return (
        cut(words_before, [(block.a, block.size) for block in blocks]),
        cut(words_after, [(block.b, block.size) for block in blocks]),
    )
