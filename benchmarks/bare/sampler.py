"""The bare script's other way to sample: our sampler, which keeps the key-value cache between turns."""

from typing import Any

import numpy as np

from benchmarks.bare.play import MAX_NEW_TOKENS, Sample
from workers.models.sampling import Row, Sampler


def keeping_cache(model: Any, tokenizer: Any, temperature: float) -> Sample:
    """Conversations are known again by their beginning: each is a longer one of the turn before."""
    sampler = Sampler(model, end=tokenizer.eos_token_id, pad=tokenizer.pad_token_id, temperature=temperature)
    random = np.random.default_rng(0)
    rows: list[Row] = []

    def sample(prompts: list[list[int]]) -> list[list[int]]:
        nonlocal rows
        rows = _matching(rows, prompts) or [Row([], np.random.default_rng(random.integers(2**63))) for _ in prompts]
        for row, prompt in zip(rows, prompts, strict=True):
            row.tokens = list(prompt)
        replies = sampler.sample(rows, [MAX_NEW_TOKENS] * len(rows))
        return [reply.tokens for reply in replies]

    return sample


def _matching(rows: list[Row], prompts: list[list[int]]) -> list[Row]:
    """The rows that go on, in the order of the prompts; nothing where other conversations begin."""
    left = iter(rows)
    found: list[Row] = []
    for prompt in prompts:
        row = next((row for row in left if prompt[: len(row.tokens)] == row.tokens), None)
        if row is None:
            return []
        found.append(row)
    return found
