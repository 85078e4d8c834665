"""A local checkpoint as a policy: all sessions that wait for a reply are answered in one batch."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from backend.domain.errors import LimitExceeded, PolicyError, boundary
from workers.models.chat import ChatTokens
from workers.models.sampling import Row, Sampled, Sampler
from workers.models.vllm_sampling import Generation, VllmSampler
from workers.policies.base import EpisodeStart, Reply, TokenTrace, Turn

GATHER_SECONDS = 0.01
"""How long a batch waits for sessions that are playing and have not asked yet."""
SETTLE_SECONDS = 0.002
"""How long it waits when all have asked: further episodes may just be beginning."""
LOCKSTEP_SECONDS = 20.0
"""The same in lockstep, where only a broken session lets the others wait."""


@dataclass(slots=True)
class _Question:
    player: "LocalPlayer"
    limit: int
    answer: asyncio.Future[Sampled]
    asked_at: float


class LocalPolicy:
    """A model of this process that acts. With `lockstep`, every batch holds all sessions that are still playing, in a
    fixed order, so that the same weights and seeds give the same episodes bit by bit."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        lockstep: bool = False,
    ) -> None:
        self.chat = ChatTokens(tokenizer)
        pad = tokenizer.pad_token_id
        ours = Sampler(model, end=self.chat.end, pad=pad, temperature=temperature, top_p=top_p, top_k=top_k)
        self.sampler: Sampler | VllmSampler = ours
        self.batches = 0
        self._is_lockstep = lockstep
        self._expected = 0
        self._playing: set[LocalPlayer] = set()
        self._waiting: list[_Question] = []
        self._timer: asyncio.TimerHandle | None = None
        self._generation: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sampling")

    def set_precision(self, *, is_bf16: bool) -> None:
        """Of the products, as in training."""
        if isinstance(self.sampler, Sampler):
            self.sampler.is_bf16 = is_bf16

    def sample_with(self, generation: Generation) -> None:
        """Let vLLM write the replies from now on, at the same temperature."""
        ours = self.sampler
        self.sampler = VllmSampler(generation, end=self.chat.end, context=ours.context, temperature=ours.temperature)

    def set_temperature(self, temperature: float) -> None:
        """Of the batches from now on."""
        self.sampler.temperature = temperature

    def expect(self, sessions: int) -> None:
        """So many sessions are about to begin: the first batch waits for them."""
        self._expected = sessions

    async def begin(self, start: EpisodeStart) -> "LocalPlayer":
        self._expected = max(0, self._expected - 1)
        player = LocalPlayer(self, start)
        self._playing.add(player)
        return player

    async def aclose(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def ask(self, player: "LocalPlayer", limit: int) -> Sampled:
        question = _Question(player, limit, asyncio.get_running_loop().create_future(), perf_counter())
        self._waiting.append(question)
        self._look()
        return await question.answer

    def leave(self, player: "LocalPlayer") -> None:
        """The player's episode is over: the others need not wait for it."""
        self._playing.discard(player)
        self._waiting = [question for question in self._waiting if question.player is not player]
        self._look()

    def _look(self) -> None:
        """Begin a batch when everybody has asked, or when the window that the first question opened is over."""
        if self._generation is not None or not self._waiting:
            return
        have_all_asked = len(self._waiting) >= len(self._playing) + self._expected
        if self._is_lockstep:
            if have_all_asked:
                self._begin_batch()
            else:
                self._wait_at_most(LOCKSTEP_SECONDS)
        else:
            self._wait_at_most(SETTLE_SECONDS if have_all_asked else GATHER_SECONDS)

    def _wait_at_most(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer.when() <= loop.time() + seconds:
                return
            self._timer.cancel()
        self._timer = loop.call_later(seconds, self._window_is_over)

    def _window_is_over(self) -> None:
        self._timer = None
        self._expected = 0
        if self._generation is None and self._waiting:
            self._begin_batch()

    def _begin_batch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        questions, self._waiting = self._waiting, []
        questions.sort(key=lambda question: question.player.order)
        self._generation = asyncio.get_running_loop().create_task(self._generate(questions))

    async def _generate(self, questions: Sequence[_Question]) -> None:
        began = perf_counter()
        for question in questions:
            question.player.waited = began - question.asked_at
        try:
            rows = [question.player.row for question in questions]
            limits = [question.limit for question in questions]
            loop = asyncio.get_running_loop()
            async with boundary(PolicyError, "sampling"):
                replies = await loop.run_in_executor(self._thread, self.sampler.sample, rows, limits)
            self.batches += 1
            for question, reply in zip(questions, replies, strict=True):
                if not question.answer.done():
                    question.answer.set_result(reply)
        except PolicyError as error:
            self.sampler.forget()
            for question in questions:
                if not question.answer.done():
                    question.answer.set_exception(error)
        finally:
            self._generation = None
            self._look()


class LocalPlayer:
    """One episode of a local policy, with its exact tokens."""

    wants_scripts = False

    def __init__(self, policy: LocalPolicy, start: EpisodeStart) -> None:
        self.row = Row([], np.random.Generator(np.random.PCG64(start.seed)))
        self.order = (start.task.index, start.member, start.task.seed, str(start.task.version_id or ""))
        self._policy = policy
        proctor = start.manifest.proctor
        self._is_cut = proctor.agent.context.cuts(proctor.episode.max_turns)
        """It reads a part of the conversation: each turn is a prompt of its own, and the episode no one sequence."""
        self.waited = 0.0
        """Of the newest question: for the batch that it became a part of."""
        self._prompt_length = 0
        self._read = 0
        """Messages that are in `row.tokens`, the reply that the engine appends to its list included."""
        self._mask: list[int] = []
        self._logprobs: list[float] = []

    async def act(self, turn: Turn) -> Reply:
        if self._is_cut and turn.index:
            self.row = Row([], self.row.random)
        if not self._append_messages(turn):
            return Reply("", len(self.row.tokens), 0, is_truncated=True)
        tokens_in = len(self.row.tokens)
        sampled = await self._policy.ask(self, min(turn.max_tokens, self._room()))
        self._mask += [1] * len(sampled.tokens)
        self._logprobs += sampled.logprobs
        is_truncated = sampled.tokens[-1] != self._policy.chat.end
        if is_truncated:
            self._append_foreign([self._policy.chat.end])
        text = self._policy.chat.text_of(sampled.tokens)
        return Reply(text, tokens_in, len(sampled.tokens), is_truncated, queue_seconds=self.waited)

    def _room(self) -> int:
        """Tokens that a reply may have, when a cut one is still to be closed."""
        return self._policy.sampler.context - len(self.row.tokens) - 1

    def _append_messages(self, turn: Turn) -> bool:
        """Tokens of the messages that are new. Replies are not tokenised again: they stand as they were sampled.

        False when the policy has filled its context: the episode then ends as cut, with the reward it has. Raises
        LimitExceeded when not even the first prompt fits.
        """
        chat, context = self._policy.chat, self._policy.sampler.context
        is_opening = not self.row.tokens
        tokens = chat.opening(turn.messages) if is_opening else chat.continuation(turn.messages[self._read :])
        fits = self._room() >= len(tokens) + 1
        if is_opening and turn.index == 0 and not fits:
            raise LimitExceeded(f"the first prompt has {len(tokens):,} tokens; the model reads at most {context:,}")
        if not fits:
            return False
        if is_opening:
            self.row.tokens = list(tokens)
            self._prompt_length = len(tokens)
        else:
            self._append_foreign(tokens)
        self._read = len(turn.messages) + 1
        return True

    def _append_foreign(self, tokens: Sequence[int]) -> None:
        """Tokens that the policy did not write."""
        self.row.tokens.extend(tokens)
        self._mask += [0] * len(tokens)
        self._logprobs += [0.0] * len(tokens)

    def trace(self) -> TokenTrace | None:
        if self._is_cut or not self.row.tokens:
            return None
        return TokenTrace(
            prompt=self.row.tokens[: self._prompt_length],
            completion=self.row.tokens[self._prompt_length :],
            mask=list(self._mask),
            logprobs=list(self._logprobs),
        )

    def close(self) -> None:
        self._policy.leave(self)
