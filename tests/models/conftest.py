"""A tiny untrained model and its tokenizer, made once."""

import random
from typing import Any

import pytest

from backend.domain.training.configuration import ModelChoice
from workers.models.build import build_model, build_tokenizer

SYSTEM = "You are X. Reply only with <move>n</move>, n a free cell."


def some_texts() -> list[str]:
    chance = random.Random(0)
    moves = [f"<move>{chance.randint(1, 9)}</move>" for _ in range(200)]
    return [SYSTEM] * 50 + ["You start.", "Invalid."] * 20 + [f"O plays {n}." for n in range(1, 10)] * 20 + moves


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return build_tokenizer(some_texts(), context=128)


@pytest.fixture(scope="session", params=["gpt2", "llama"])
def model(request: pytest.FixtureRequest, tokenizer: Any) -> Any:
    return build_model(tokenizer, ModelChoice(architecture=request.param, context=128), seed=1)
