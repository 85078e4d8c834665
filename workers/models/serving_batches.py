"""Requests answered in batches by the local policy's sampler; each row ends on its own, its text told as it comes."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import structlog

from workers.models.chat import ChatTokens
from workers.models.sampling import Row, Sampler

GATHER_SECONDS = 0.004
"""How long a batch waits for requests that come at the same time."""
MAX_BATCH = 64
UNFINISHED = "\ufffd"
"""What a cut character decodes to."""

logger = structlog.get_logger(__name__)


@dataclass(eq=False)
class Answer:
    """One choice: its prompt, how it is sampled, and what has been said so far."""

    prompt: list[int]
    limit: int
    seed: int
    temperature: float
    top_p: float
    stops: Sequence[str] = ()
    on_text: Callable[[str], None] | None = None
    """Told each new piece of text, in the sampling thread."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    finish: str = "length"
    is_over: bool = False
    is_abandoned: bool = False
    """Nobody waits for it any more."""
    _read: tuple[int, int] = (0, 0)
    """Tokens before the first do not change what later ones decode to; those before the second are in the text."""
    _told: int = 0

    @property
    def sampling(self) -> tuple[float, float]:
        return self.temperature, self.top_p

    def take(self, token: int, logprob: float, chat: ChatTokens) -> bool:
        """One more token. Is it over now?"""
        if self.is_over:
            return True
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if token == chat.end:
            self.finish, self.is_over = "stop", True
        else:
            self._read_on(chat, whole=False)
            self.is_over = self._stops() or self.is_abandoned or len(self.tokens) >= self.limit
        if self.is_over:
            self._finish(chat)
        else:
            self._tell(len(self.text) - max((len(stop) - 1 for stop in self.stops), default=0))
        return self.is_over

    def _read_on(self, chat: ChatTokens, *, whole: bool) -> None:
        """Append what the newest tokens add to the text, once it is whole characters."""
        start, read = self._read
        ids = self.tokens[:-1] if self.tokens and self.tokens[-1] == chat.end else self.tokens
        known, now = chat.text_of(ids[start:read]), chat.text_of(ids[start:])
        if len(now) > len(known) and (whole or not now.endswith(UNFINISHED)):
            self.text += now[len(known) :]
            self._read = (read, len(ids))

    def _stops(self) -> bool:
        """Cut at the first stop sequence, where there is one."""
        found = [place for place in (self.text.find(stop) for stop in self.stops) if place >= 0]
        if found:
            self.text, self.finish = self.text[: min(found)], "stop"
        return bool(found)

    def _finish(self, chat: ChatTokens) -> None:
        has_stopped = self.finish == "stop" and self.tokens[-1] != chat.end
        if not has_stopped:
            self._read_on(chat, whole=True)
            self._stops()
        self._tell(len(self.text))

    def _tell(self, end: int) -> None:
        if self.on_text is not None and end > self._told:
            self.on_text(self.text[self._told : end])
            self._told = end


class Batches:
    """Not safe to use from two event loops. Requests with the same sampling share a batch."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        model.eval()
        self.chat = ChatTokens(tokenizer)
        self.sampler = Sampler(model, end=self.chat.end, pad=tokenizer.pad_token_id)
        self.batches = 0
        self._waiting: list[tuple[Answer, asyncio.Future[None]]] = []
        self._sampled: Sequence[Answer] = ()
        self._work: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sampling")

    @property
    def context(self) -> int:
        return self.sampler.context

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def in_thread(self, work: Callable[[], Any]) -> Any:
        """The tokenizer is used by one thread, which also samples."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def answer(self, answer: Answer) -> None:
        """Until it is over. Raises what the model raised."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((answer, done))
        if self._work is None:
            self._work = asyncio.create_task(self._go_on())
        try:
            await done
        finally:
            answer.is_abandoned = True

    async def close(self) -> None:
        for answer in [*(answer for answer, _ in self._waiting), *self._sampled]:
            answer.is_abandoned = True
        if self._work is not None:
            self._work.cancel()
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)  # what is sampled ends with its next token

    async def _go_on(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(GATHER_SECONDS)
                await self._batch(self._next())
        finally:
            self._work = None

    def _next(self) -> list[tuple[Answer, asyncio.Future[None]]]:
        """The oldest and those that are sampled alike."""
        wanted = self._waiting[0][0].sampling
        chosen = [pair for pair in self._waiting if pair[0].sampling == wanted][:MAX_BATCH]
        self._waiting = [pair for pair in self._waiting if pair not in chosen]
        return chosen

    async def _batch(self, batch: Sequence[tuple[Answer, asyncio.Future[None]]]) -> None:
        answers = self._sampled = [answer for answer, _ in batch]
        error: Exception | None = None
        try:
            await self.in_thread(lambda: self._sample(answers))
            self.batches += 1
        except Exception as raised:
            logger.exception("sampling failed")
            error = raised
        for _, done in batch:
            if done.done():
                continue
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

    def _sample(self, answers: Sequence[Answer]) -> None:
        self.sampler.temperature, self.sampler.top_p = answers[0].sampling
        rows = [Row(list(answer.prompt), np.random.Generator(np.random.PCG64(answer.seed))) for answer in answers]

        def watch(_: int, tokens: Sequence[int], logprobs: Sequence[float]) -> list[int]:
            return [
                place for place, answer in enumerate(answers) if answer.take(tokens[place], logprobs[place], self.chat)
            ]

        try:
            self.sampler.sample(rows, [answer.limit for answer in answers], watch)
        finally:
            self.sampler.forget()
