"""Answer requests in batches with the local policy's sampler. Each row ends separately and streams its text."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import structlog
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from workers.models.chat import ChatTokens
from workers.models.sampling import Row, Sampler

GATHER_SECONDS = 0.004  # how long a batch waits for requests that arrive at the same time
MAX_BATCH = 64
UNFINISHED = "\ufffd"  # an incomplete character decodes to this
Result = TypeVar("Result")

logger = structlog.get_logger(__name__)


@dataclass(eq=False)
class ServedCompletion:
    """One choice of a request: its prompt, how it is sampled, and its text so far."""

    index: int
    prompt: list[int]
    limit: int
    seed: int
    sampling: tuple[float, float]  # temperature and top_p
    stops: Sequence[str] = ()
    on_text: Callable[[int, str], object] | None = None
    """Called with the index and each new piece of text, in the sampling thread."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    finish_reason: str = "length"
    is_over: bool = False
    is_abandoned: bool = False  # the client no longer waits for it
    _decoded: tuple[int, int] = (0, 0)
    """Tokens before the first place do not change how later ones decode; those before the second are in the text."""
    _sent: int = 0

    def append(self, token: int, logprob: float, chat: ChatTokens) -> bool:
        """Add a token. Returns whether the completion has ended."""
        if self.is_over:
            return True
        self.tokens.append(token)
        self.logprobs.append(logprob)
        has_ended = token == chat.end
        has_stopped = not has_ended and self._decode(chat, whole=False)
        self.is_over = has_ended or has_stopped or self.is_abandoned or len(self.tokens) >= self.limit
        if has_ended:
            self.finish_reason = "stop"
        if self.is_over and not has_stopped:
            self._decode(chat, whole=True)
        # the start of a stop sequence is held back until it is clear that it is none
        held = 0 if self.is_over else max((len(stop) - 1 for stop in self.stops), default=0)
        if self.on_text is not None and len(self.text) - held > self._sent:
            self.on_text(self.index, self.text[self._sent : len(self.text) - held])
            self._sent = len(self.text) - held
        return self.is_over

    def _decode(self, chat: ChatTokens, *, whole: bool) -> bool:
        """Append the text of the latest tokens, as soon as it is whole characters. Returns whether it was cut at a stop
        sequence. `whole`: also append incomplete characters."""
        start, decoded = self._decoded
        ids = self.tokens[:-1] if self.tokens[-1] == chat.end else self.tokens
        known, now = chat.text_of(ids[start:decoded]), chat.text_of(ids[start:])
        if len(now) > len(known) and (whole or not now.endswith(UNFINISHED)):
            self.text += now[len(known) :]
            self._decoded = (decoded, len(ids))
        found = [place for place in (self.text.find(stop) for stop in self.stops) if place >= 0]
        if found:
            self.text, self.finish_reason = self.text[: min(found)], "stop"
        return bool(found)


class BatchSampler:
    """Samples completions; those with the same sampling share a batch. Not safe to use from two event loops."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        model.eval()
        self.chat = ChatTokens(tokenizer)
        self.sampler = Sampler(model, end=self.chat.end, pad=tokenizer.pad_token_id)
        self.context = self.sampler.context
        self.batches = 0
        self.waiting: list[tuple[ServedCompletion, asyncio.Future[None]]] = []
        self._sampled: Sequence[ServedCompletion] = ()
        self._work: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sampling")

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        """Run in the one thread that uses the tokenizer and samples."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def sample(self, completion: ServedCompletion) -> None:
        """Wait until the completion has ended. Raises the model's exceptions."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append((completion, done))
        if self._work is None:
            self._work = asyncio.create_task(self._sample_waiting())
        try:
            await done
        finally:
            completion.is_abandoned = True

    async def close(self) -> None:
        for completion in [*(completion for completion, _ in self.waiting), *self._sampled]:
            completion.is_abandoned = True
        if self._work is not None:
            self._work.cancel()
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)  # the current batch ends at its next token

    async def _sample_waiting(self) -> None:
        """Sample batch after batch: the oldest request and those with the same sampling."""
        try:
            while self.waiting:
                await asyncio.sleep(GATHER_SECONDS)
                sampling = self.waiting[0][0].sampling
                batch = [pair for pair in self.waiting if pair[0].sampling == sampling][:MAX_BATCH]
                self.waiting = [pair for pair in self.waiting if pair not in batch]
                self._sampled = [completion for completion, _ in batch]
                failure: Exception | None = None
                try:
                    await self.in_thread(self._sample_batch)
                    self.batches += 1
                except Exception as error:
                    logger.exception("sampling failed")
                    failure = error
                for _, done in batch:
                    if done.done():
                        continue
                    if failure is None:
                        done.set_result(None)
                    else:
                        done.set_exception(failure)
        finally:
            self._work = None

    def _sample_batch(self) -> None:
        batch = self._sampled
        self.sampler.temperature, self.sampler.top_p = batch[0].sampling
        rows = [Row(list(each.prompt), np.random.Generator(np.random.PCG64(each.seed))) for each in batch]

        def watch(_: int, tokens: Sequence[int], logprobs: Sequence[float]) -> list[int]:
            return [place for place, each in enumerate(batch) if each.append(tokens[place], logprobs[place], self.chat)]

        try:
            self.sampler.sample(rows, [each.limit for each in batch], watch)
        finally:
            self.sampler.forget()
