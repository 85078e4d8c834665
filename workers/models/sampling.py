"""One batch of replies from a causal language model, with the key-value cache kept while the same rows go on.

Each row draws its own random numbers, so what it samples depends on its seed and not on its neighbours or its place.
Shapes: B rows, T tokens, V vocabulary.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache


@dataclass(slots=True, eq=False)
class Row:
    """One conversation as the model sees it."""

    tokens: list[int]
    """Everything so far, the newest prompt included."""
    random: np.random.Generator
    fed: int = 0
    """How many of `tokens` lie in the sampler's cache."""


@dataclass(slots=True)
class Sampled:
    """One reply."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """Natural, at the sampling temperature (at 1 when greedy)."""


Watch = Callable[[int, Sequence[int], Sequence[float]], Iterable[int]]
"""Told the position, the tokens and their log-probabilities as they are drawn; answers which rows end with them."""


class Sampler:
    """Samples replies for rows. Not safe to use from two threads at a time."""

    def __init__(
        self, model: Any, *, end: int, pad: int, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0
    ) -> None:
        self.model, self.end, self.pad = model, end, pad
        self.temperature, self.top_p, self.top_k = temperature, top_p, top_k
        self.context: int = getattr(model.config, "max_position_embeddings", None) or 1 << 30
        self.is_bf16 = False
        """Compute products in bf16, as training does; log-probabilities are float32 all the same."""
        self.prefills = 0
        """Batches that began with an empty cache."""
        self._device = next(model.parameters()).device
        self._rows: list[Row] = []
        self._cache: Any = None
        self._seen_BT = torch.zeros(0, 0, dtype=torch.long)
        self._length_B = torch.zeros(0, dtype=torch.long)

    def sample(self, rows: Sequence[Row], limits: Sequence[int], watch: Watch | None = None) -> list[Sampled]:
        """A reply for each row, at most `limits` tokens long; it ends with the end token unless it was cut."""
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.inference_mode(), torch.autocast(self._device.type, torch.bfloat16, enabled=self.is_bf16):
                return self._sample(list(rows), list(limits), watch)
        finally:
            self.model.train(was_training)

    def forget(self) -> None:
        """Drop the cache, as after a failure in the middle of a batch."""
        self._rows = []

    def _sample(self, rows: list[Row], limits: list[int], watch: Watch | None) -> list[Sampled]:
        self._take_up(rows)
        logits_BV = self._feed_waiting(rows)
        length = max(limits)
        draws_BT = torch.from_numpy(
            np.stack([_draws(row, limit, length) for row, limit in zip(rows, limits, strict=True)])
        )
        draws_BT = draws_BT.to(self._device)
        limits_B = torch.tensor(limits, device=self._device)
        over_B = torch.zeros(len(rows), dtype=torch.bool, device=self._device)
        tokens, logprobs = [], []
        for position in range(length):
            token_B, logprob_B = self._draw(logits_BV, draws_BT[:, position])
            tokens.append(token_B)
            logprobs.append(logprob_B)
            if watch is not None:
                for place in watch(position, token_B.tolist(), logprob_B.tolist()):
                    limits[place] = min(limits[place], position + 1)
                limits_B = torch.tensor(limits, device=self._device)
            over_B = over_B | (token_B == self.end) | (limits_B <= position + 1)
            if bool(over_B.all()):
                break
            fed_B = (~over_B).long()
            logits_BV = self._feed(torch.where(over_B, self.pad, token_B)[:, None], fed_B[:, None])
        return self._collect(rows, limits, torch.stack(tokens, 1).tolist(), torch.stack(logprobs, 1).tolist())

    def _take_up(self, rows: list[Row]) -> None:
        """Keep the cache when every row goes on from it; start anew otherwise."""
        place = {id(row): index for index, row in enumerate(self._rows)}
        if self._rows and all(id(row) in place for row in rows):
            chosen = [place[id(row)] for row in rows]
            if chosen != list(range(len(self._rows))):
                index = torch.tensor(chosen, device=self._device)
                self._cache.batch_select_indices(index)
                self._seen_BT, self._length_B = self._seen_BT[index], self._length_B[index]
        else:
            self.prefills += 1
            self._cache = DynamicCache(config=self.model.config)
            self._seen_BT = torch.zeros(len(rows), 0, dtype=torch.long, device=self._device)
            self._length_B = torch.zeros(len(rows), dtype=torch.long, device=self._device)
            for row in rows:
                row.fed = 0
        self._rows = rows

    def _feed_waiting(self, rows: list[Row]) -> torch.Tensor:
        """Feed what each row has not fed yet, padded on the left. Logits after the last token."""
        waiting = [row.tokens[row.fed :] for row in rows]
        width = max(map(len, waiting))
        tokens_BT = torch.tensor([[self.pad] * (width - len(ids)) + ids for ids in waiting], device=self._device)
        real_BT = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in waiting], device=self._device)
        for row in rows:
            row.fed = len(row.tokens)
        return self._feed(tokens_BT, real_BT)

    def _feed(self, tokens_BT: torch.Tensor, real_BT: torch.Tensor) -> torch.Tensor:
        """Append tokens to the cache; `real` is 0 for padding, which no later token sees."""
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
        logits: torch.Tensor = output.logits[:, -1].float()
        return logits

    def _draw(self, logits_BV: torch.Tensor, draw_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The token whose share of the cumulated probability holds the row's draw; the likeliest when greedy."""
        if self.temperature == 0:
            logprobs_BV = torch.log_softmax(logits_BV, -1)
            token_B = logprobs_BV.argmax(-1)
        else:
            logits_BV = logits_BV / self.temperature
            if 0 < self.top_k < logits_BV.shape[-1]:
                logits_BV = _likeliest(logits_BV, self.top_k)
            if self.top_p < 1:
                logits_BV = _nucleus(logits_BV, self.top_p)
            logprobs_BV = torch.log_softmax(logits_BV, -1)
            edges_BV = logprobs_BV.double().exp().cumsum(-1)
            point_B = draw_B * edges_BV[:, -1]
            token_B = torch.searchsorted(edges_BV, point_B[:, None], right=True)[:, 0].clamp(
                max=logits_BV.shape[-1] - 1
            )
        return token_B, logprobs_BV.gather(1, token_B[:, None])[:, 0]

    def _collect(
        self, rows: list[Row], limits: list[int], tokens_BT: list[list[int]], logprobs_BT: list[list[float]]
    ) -> list[Sampled]:
        """Cut each row at its end or limit. Its last token was never fed."""
        replies = []
        for row, limit, ids, logprobs in zip(rows, limits, tokens_BT, logprobs_BT, strict=True):
            length = min(limit, len(ids))
            if self.end in ids[:length]:
                length = ids.index(self.end) + 1
            row.tokens.extend(ids[:length])
            row.fed += length - 1
            replies.append(Sampled(ids[:length], logprobs[:length]))
        return replies


def _likeliest(logits_BV: torch.Tensor, top_k: int) -> torch.Tensor:
    """Only so many of the likeliest tokens."""
    value_BK, token_BK = logits_BV.topk(top_k, -1)
    return torch.full_like(logits_BV, -torch.inf).scatter(-1, token_BK, value_BK)


def _nucleus(logits_BV: torch.Tensor, top_p: float) -> torch.Tensor:
    """Only the likeliest tokens that together reach `top_p`; always at least one."""
    sorted_BV, order_BV = logits_BV.sort(-1, descending=True)
    before_BV = sorted_BV.softmax(-1).cumsum(-1) - sorted_BV.softmax(-1)
    return torch.full_like(logits_BV, -torch.inf).scatter(
        -1, order_BV, sorted_BV.masked_fill(before_BV >= top_p, -torch.inf)
    )


def _draws(row: Row, limit: int, length: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The row's own uniform numbers, one a token up to its limit; others' limits do not move its stream."""
    drawn = np.zeros(length)
    drawn[:limit] = row.random.random(limit)
    return drawn
