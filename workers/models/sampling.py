"""Sample one batch of replies from a causal language model, keeping the key-value cache while the same rows continue.

Each row draws its own random numbers, so what it samples depends on its seed and not on its neighbors or its place.
Shapes: B rows, T tokens, V vocabulary, K the most likely tokens, N blocks of M tokens of the vocabulary.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Protocol, TypedDict, Unpack

import numpy as np
import torch
from torch.nn.functional import pad
from transformers import PreTrainedModel

from workers.models.decoding import DecodingWeights, new_cache

LEAST_SHARED = 8
"""Tokens at the start of all prompts from which they are computed once for all."""
BLOCK = 256
"""Tokens of the vocabulary whose probabilities are summed at once."""


@dataclass(slots=True, eq=False)
class Row:
    """One conversation as the model sees it."""

    tokens: list[int]  # everything so far, including the latest prompt
    random: np.random.Generator
    fed: int = 0  # number of `tokens` in the sampler's cache


@dataclass(slots=True)
class Sampled:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """Natural logarithms, at the sampling temperature (at 1 when greedy)."""


Watch = Callable[[int, Sequence[int], Sequence[float]], Iterable[int]]
"""Called with the position, the tokens and their log-probabilities as they are drawn. Returns the rows that end."""


class SamplingOptions(TypedDict, total=False):
    temperature: float  # default: 1; 0 is greedy
    top_p: float  # default: 1
    top_k: int  # default: 0, which is all tokens
    is_bf16: bool
    """Compute products in bf16, as training does. Log-probabilities are float32 in any case. Default: False."""


class Sampler:
    """Samples replies for rows. Not safe to use from two threads at a time."""

    def __init__(self, model: PreTrainedModel, *, end: int, pad: int, **options: Unpack[SamplingOptions]) -> None:
        self.model, self.end, self.pad = model, end, pad
        self.temperature, self.top_p = options.get("temperature", 1.0), options.get("top_p", 1.0)
        self.top_k, self.is_bf16 = options.get("top_k", 0), options.get("is_bf16", False)
        self.context: int = getattr(model.config, "max_position_embeddings", None) or 1 << 30
        self.prefills = 0  # batches that started with an empty cache
        self._device = next(model.parameters()).device
        self._rows: Sequence[Row] = ()
        self._weights = DecodingWeights(model, is_bf16=self.is_bf16)
        self._cache = new_cache(model.config)
        self._seen_BT = torch.zeros(0, 0, dtype=torch.long)
        self._length_B = torch.zeros(0, dtype=torch.long)

    def sample(self, rows: Sequence[Row], limits: Sequence[int], watch: Watch | None = None) -> list[Sampled]:
        """Sample a reply of at most `limits` tokens for each row. It ends with the end token unless it was cut."""
        was_training = self.model.training
        self.model.eval()
        try:
            with (
                self._weights.in_place(len(rows)),
                torch.inference_mode(),
                torch.autocast(self._device.type, torch.bfloat16, enabled=self.is_bf16),
            ):
                return self._sample(rows, list(limits), watch)
        finally:
            self.model.train(was_training)

    def forget(self) -> None:
        """Drop the cache, for example after a failure in the middle of a batch."""
        self._rows = ()

    def _sample(self, rows: Sequence[Row], limits: list[int], watch: Watch | None) -> list[Sampled]:
        if self._reuse_cache(rows):
            logits_BV = self._feed_prompts([row.tokens[row.fed :] for row in rows])
        else:
            logits_BV = self._prefill([row.tokens for row in rows])
        for row in rows:
            row.fed = len(row.tokens)
        # each row draws one number per token up to its own limit, so the limits of others do not move its stream
        draws = np.zeros((len(rows), max(limits)))
        for place, (row, limit) in enumerate(zip(rows, limits, strict=True)):
            draws[place, :limit] = row.random.random(limit)
        draws_BT = torch.from_numpy(draws).to(self._device)
        limits_B = torch.tensor(limits, device=self._device)
        over_B = torch.zeros(len(rows), dtype=torch.bool, device=self._device)
        drawn: list[torch.Tensor] = []
        drawn_logprobs: list[torch.Tensor] = []
        for position in range(draws.shape[1]):
            token_B, logprob_B = self._draw(logits_BV, draws_BT[:, position])
            drawn.append(token_B)
            drawn_logprobs.append(logprob_B)
            if watch is not None:
                for place in watch(position, token_B.tolist(), logprob_B.tolist()):
                    limits[place] = min(limits[place], position + 1)
                limits_B = torch.tensor(limits, device=self._device)
            over_B = over_B | (token_B == self.end) | (limits_B <= position + 1)
            if bool(over_B.all()):
                break
            logits_BV = self._feed(torch.where(over_B, self.pad, token_B)[:, None], (~over_B).long()[:, None])
        replies = []
        tokens, logprobs = torch.stack(drawn, 1).tolist(), torch.stack(drawn_logprobs, 1).tolist()
        for row, limit, ids, values in zip(rows, limits, tokens, logprobs, strict=True):
            length = min(limit, len(ids))
            if self.end in ids[:length]:
                length = ids.index(self.end) + 1
            row.tokens.extend(ids[:length])
            row.fed += length - 1  # the last token was never fed
            replies.append(Sampled(ids[:length], values[:length]))
        return replies

    def _reuse_cache(self, rows: Sequence[Row]) -> bool:
        """Keep the cache if every row continues from it, and return whether it is kept."""
        place = {id(row): index for index, row in enumerate(self._rows)}
        is_kept = bool(place) and all(id(row) in place for row in rows)
        if is_kept:
            chosen = [place[id(row)] for row in rows]
            if chosen != list(range(len(place))):
                self._choose(chosen)
        self._rows = tuple(rows)
        return is_kept

    def _prefill(self, prompts: Sequence[list[int]]) -> torch.Tensor:
        """Start with an empty cache and return the logits after each prompt.

        Equal prompts, such as those of a group, are computed once; so is a start that all prompts share.
        """
        self.prefills += 1
        self._cache = new_cache(self.model.config)
        self._seen_BT = torch.zeros(1, 0, dtype=torch.long, device=self._device)
        self._length_B = torch.zeros(1, dtype=torch.long, device=self._device)
        place = {prompt: index for index, prompt in enumerate(dict.fromkeys(map(tuple, prompts)))}
        different: list[tuple[int, ...]] = list(place)
        pairs = zip(min(different), max(different), strict=False)
        shared = min(sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)), min(map(len, different)) - 1)
        if len(different) > 1 and shared >= LEAST_SHARED:
            self._feed_prompts([different[0][:shared]])
            different = [prompt[shared:] for prompt in different]
            self._choose([0] * len(different))
        else:
            self._seen_BT, self._length_B = (
                self._seen_BT.expand(len(different), 0),
                self._length_B.expand(len(different)),
            )
        logits_BV = self._feed_prompts(different)
        chosen = [place[tuple(prompt)] for prompt in prompts]
        if chosen != list(range(len(different))):
            self._choose(chosen)
            logits_BV = logits_BV[chosen]
        return logits_BV

    def _choose(self, places: Sequence[int]) -> None:
        """Let the cache consist of these of its rows, in this order; a row may be repeated."""
        index = torch.tensor(places, device=self._device)
        self._cache.batch_select_indices(index)
        self._seen_BT, self._length_B = self._seen_BT[index], self._length_B[index]

    def _feed_prompts(self, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Append prompts of different lengths, padded at their start. Returns the logits after each."""
        width = max(map(len, prompts))
        tokens_BT = torch.tensor([[self.pad] * (width - len(ids)) + list(ids) for ids in prompts], device=self._device)
        real_BT = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts], device=self._device)
        return self._feed(tokens_BT, real_BT)

    def _feed(self, tokens_BT: torch.Tensor, real_BT: torch.Tensor) -> torch.Tensor:
        """Append tokens to the cache and return the logits after the last one. `real` is 0 for padding, which no later
        token sees."""
        self._seen_BT = torch.cat([self._seen_BT, real_BT], 1)
        positions_BT = (self._length_B[:, None] + real_BT.cumsum(1) - 1).clamp(min=0)
        self._length_B = self._length_B + real_BT.sum(1)
        output = self.model(
            input_ids=tokens_BT,
            attention_mask=self._seen_BT,
            position_ids=positions_BT,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits_BV: torch.Tensor = output.logits[:, -1].float()
        return logits_BV

    def _draw(self, logits_BV: torch.Tensor, draw_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The token whose part of the cumulative probability contains the row's draw; the most likely when greedy."""
        if self.temperature == 0:
            logprobs_BV = torch.log_softmax(logits_BV, -1)
            token_B = logprobs_BV.argmax(-1)
            return token_B, logprobs_BV.gather(1, token_B[:, None])[:, 0]
        if self.temperature != 1:
            logits_BV = logits_BV / self.temperature
        if 0 < self.top_k < logits_BV.shape[-1]:
            value_BK, token_BK = logits_BV.topk(self.top_k, -1)
            logits_BV = torch.full_like(logits_BV, -torch.inf).scatter(-1, token_BK, value_BK)
        if self.top_p < 1:  # the most likely tokens that together reach top_p, at least one
            sorted_BV, order_BV = logits_BV.sort(-1, descending=True)
            share_BV = sorted_BV.softmax(-1)
            kept_BV = sorted_BV.masked_fill(share_BV.cumsum(-1) - share_BV >= self.top_p, -torch.inf)
            logits_BV = torch.full_like(logits_BV, -torch.inf).scatter(-1, order_BV, kept_BV)
        highest_B1 = logits_BV.amax(-1, keepdim=True)
        token_B, total_B = draw_from((logits_BV - highest_B1).exp_(), draw_B)
        value_B1 = logits_BV.gather(1, token_B[:, None]) - highest_B1
        return token_B, (value_B1[:, 0].double() - total_B.log()).float()


def draw_from(weights_BV: torch.Tensor, draw_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return for each row the token whose part of the cumulative weight contains the draw, and the sum of its weights.

    Sums are in float64, and by block first: only the block with the draw is summed token by token.
    """
    weights_BNM = pad(weights_BV, (0, -weights_BV.shape[1] % BLOCK)).reshape(len(weights_BV), -1, BLOCK)
    edges_BN = weights_BNM.sum(-1, dtype=torch.float64).cumsum(-1)
    point_B1 = draw_B[:, None] * edges_BN[:, -1:]
    block_B1 = torch.searchsorted(edges_BN, point_B1, right=True).clamp(max=edges_BN.shape[1] - 1)
    before_B1 = pad(edges_BN, (1, 0)).gather(1, block_B1)
    row_B1 = torch.arange(len(draw_B), device=draw_B.device)[:, None]
    inner_BM = weights_BNM[row_B1, block_B1][:, 0].double().cumsum(-1)
    # a block's sum may differ in its last digits from the sum of its tokens: stay within the tokens
    inside_B1 = (point_B1 - before_B1).minimum(inner_BM[:, -1:] * (1 - 1e-12))
    place_B1 = torch.searchsorted(inner_BM, inside_B1, right=True)
    return (block_B1 * BLOCK + place_B1)[:, 0], edges_BN[:, -1]


class VllmGeneration(Protocol):
    """The part of TRL's `VLLMGeneration` that is used."""

    temperature: float
    top_p: float
    top_k: int
    max_completion_length: int

    def generate(
        self, prompts: list[list[int]], images: None, num_generations: int
    ) -> tuple[object, list[list[int]], list[list[list[float]]], object]: ...


@dataclass
class VllmSampler:
    """Replaces a `Sampler` in a `LocalPolicy`: TRL gives vLLM the latest weights at each step.

    vLLM draws its own random numbers, so the same seed does not give the same episodes. It caches prefixes itself.
    """

    generation: VllmGeneration
    end: int
    context: int
    temperature: float

    def sample(self, rows: Sequence[Row], limits: Sequence[int], watch: Watch | None = None) -> list[Sampled]:
        """Sample a reply for each row. One limit applies to the whole batch, so longer replies are cut to their own."""
        if watch is not None:
            raise NotImplementedError("vLLM's replies cannot be watched while they are written")
        self.generation.temperature = self.temperature
        self.generation.max_completion_length = max(limits)
        prompts = [list(row.tokens) for row in rows]
        _, replies, logprobs, _ = self.generation.generate(prompts=prompts, images=None, num_generations=1)
        sampled = []
        for row, limit, ids, values in zip(rows, limits, replies, logprobs, strict=True):
            length = min(limit, ids.index(self.end) + 1 if self.end in ids else len(ids))
            row.tokens.extend(ids[:length])
            sampled.append(Sampled(list(ids[:length]), [value[0] for value in values[:length]]))
        return sampled

    def forget(self) -> None:
        """A failed batch leaves nothing behind."""
