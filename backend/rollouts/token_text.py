"""Tokens of a rollout as text with their probabilities: the policy's own ones, and the environment's between them."""

import json
import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.core.artifacts import open_file
from backend.domain.vocabulary import PolicyKind
from backend.rollouts.tables import Rollout

MAX_TOKENS = 4000
LEAST_SURE = 20
_SPACES = str.maketrans({"Ġ": " ", "Ċ": "\n", "▁": " "})
"""How tokenizers write a space and a line break."""
_HEAT = (0.95, 0.8, 0.5, 0.2, 0.05)
"""Probabilities at which a token changes its shade: sure tokens stay plain."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token after the first prompt."""

    text: str
    is_policy: bool
    """Else the environment wrote it, and it takes no part in the loss."""
    probability: float | None
    heat: int
    """0 (the policy was sure) … 5 (it was surprised itself)."""
    begins_turn: bool = False
    """The first one of a later reply."""


@dataclass(frozen=True, slots=True)
class TokenView:
    """What a page shows of a rollout's tokens."""

    tokens: list[Token]
    prompt_count: int
    policy_count: int
    mean_logprob: float | None
    """Over the policy's tokens, in nats."""
    is_cut: bool
    has_text: bool
    """False: the tokenizer is not at hand, so ids are shown."""
    turn_advantages: list[float] = field(default_factory=list)
    """By turn, where training gave credit by turn."""

    @property
    def least_sure(self) -> list[tuple[int, Token]]:
        """The policy's tokens of lowest probability with their places, for reading without colours."""
        known = [(place, token) for place, token in enumerate(self.tokens) if token.probability is not None]
        return sorted(known, key=lambda pair: pair[1].probability or 0.0)[:LEAST_SURE]


def token_view(session: Session, rollout: Rollout) -> TokenView | None:
    """Of token ids where they are stored, else of tokens that the endpoint told as text."""
    stored = rollout.tokens
    if not stored:
        return None
    if stored.get("completion"):
        vocabulary = _vocabulary_of(session, rollout)
        texts = [vocabulary.get(token, f"⟨{token}⟩") for token in stored["completion"][:MAX_TOKENS]]
        return _view(stored, texts, len(stored["completion"]), has_text=bool(vocabulary))
    if stored.get("texts"):
        texts = [str(text) for text in stored["texts"][:MAX_TOKENS]]
        return _view(stored, texts, len(stored["texts"]), has_text=True)
    return None


def _view(stored: dict[str, Any], texts: list[str], count: int, *, has_text: bool) -> TokenView:
    mask = stored.get("mask") or [1] * count
    logprobs = stored.get("logprobs") or [None] * count
    turns = set(stored.get("turns") or ())
    tokens = [
        _token(text, own, logprob, begins_turn=number in turns and number > 0)
        for number, (text, own, logprob) in enumerate(zip(texts, mask, logprobs, strict=False))
    ]
    known = [value for value, own in zip(logprobs, mask, strict=False) if own and value is not None]
    return TokenView(
        tokens=tokens,
        prompt_count=len(stored.get("prompt") or ()),
        policy_count=sum(mask),
        mean_logprob=math.fsum(known) / len(known) if known else None,
        is_cut=count > MAX_TOKENS,
        has_text=has_text,
        turn_advantages=stored.get("turn_advantages") or [],
    )


def _token(text: str, own: int, logprob: float | None, *, begins_turn: bool = False) -> Token:
    if not own or logprob is None:
        return Token(text, bool(own), None, 0, begins_turn)
    probability = math.exp(min(0.0, logprob))
    return Token(text, True, probability, sum(probability < limit for limit in _HEAT), begins_turn)


def _vocabulary_of(session: Session, rollout: Rollout) -> dict[int, str]:
    """Text by token id, from a checkpoint of the policy that played; empty when none is at hand."""
    policy = rollout.run.policy
    if policy is None or policy.kind is not PolicyKind.LOCAL:
        return {}
    of_policy = select(Checkpoint.artifact).where(Checkpoint.policy_id == policy.id, Checkpoint.pruned_at.is_(None))
    artifact = session.scalar(of_policy.order_by(Checkpoint.id).limit(1))
    return _vocabulary(artifact) if artifact else {}


@lru_cache(maxsize=16)
def _vocabulary(artifact: str) -> dict[int, str]:
    try:
        with open_file(f"{artifact}/tokenizer.json") as file:
            stored: dict[str, Any] = json.load(file)
    except (OSError, ValueError):
        return {}
    model = stored.get("model", {}).get("vocab", {})
    pieces = model.items() if isinstance(model, dict) else ((entry[0], index) for index, entry in enumerate(model))
    vocabulary = {index: str(piece).translate(_SPACES) for piece, index in pieces}
    return vocabulary | {added["id"]: added["content"] for added in stored.get("added_tokens", ())}
