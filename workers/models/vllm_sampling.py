"""The same conversations sampled by vLLM, through TRL's own generation, which is given the newest weights each step.

vLLM draws its own random numbers: episodes are not the same again under the same seed.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from workers.models.sampling import Row, Sampled, Watch


class Generation(Protocol):
    """TRL's `VLLMGeneration`, as far as it is used."""

    temperature: float
    top_p: float
    top_k: int
    max_completion_length: int

    def generate(
        self, prompts: list[list[int]], images: None, num_generations: int
    ) -> tuple[Any, list[list[int]], list[list[list[float]]], Any]: ...


class VllmSampler:
    """Takes a `Sampler`'s place in a `LocalPolicy`. vLLM keeps what it has read by its prefix."""

    def __init__(self, generation: Generation, *, end: int, context: int, temperature: float) -> None:
        self._generation = generation
        self.end, self.context, self.temperature = end, context, temperature

    def sample(self, rows: Sequence[Row], limits: Sequence[int], watch: Watch | None = None) -> list[Sampled]:
        """A reply for each row. One limit counts for the whole batch, so longer replies are cut to their own."""
        if watch is not None:
            raise NotImplementedError("vLLM's replies are not watched while they are written")
        self._generation.temperature = self.temperature
        self._generation.max_completion_length = max(limits)
        prompts = [list(row.tokens) for row in rows]
        _, replies, logprobs, _ = self._generation.generate(prompts=prompts, images=None, num_generations=1)
        sampled = []
        for row, limit, ids, values in zip(rows, limits, replies, logprobs, strict=True):
            length = min(limit, ids.index(self.end) + 1 if self.end in ids else len(ids))
            row.tokens.extend(ids[:length])
            sampled.append(Sampled(list(ids[:length]), [value[0] for value in values[:length]]))
        return sampled

    def forget(self) -> None:
        """Nothing of a failed batch is kept here."""
