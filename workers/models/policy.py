"""A local checkpoint as a policy: all sessions that wait for a reply are answered in one batch."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import Unpack

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from backend.domain.errors import LimitExceeded, PolicyError, boundary
from workers.models.chat import ChatTokens
from workers.models.sampling import Row, Sampled, Sampler, SamplingOptions, VllmGeneration, VllmSampler
from workers.policies.base import EpisodeStart, Player, Policy, Reply, TokenTrace, Turn

GATHER_SECONDS = 0.01  # how long a batch waits for sessions that have not requested a reply yet
SETTLE_SECONDS = 0.002  # how long it waits when all have requested one: more episodes may be about to begin
LOCKSTEP_SECONDS = 20.0  # the same in lockstep, where only a broken session keeps the others waiting


@dataclass(slots=True)
class _SampleRequest:
    player: "LocalPlayer"
    limit: int
    reply: asyncio.Future[Sampled]
    requested_at: float


class LocalPolicy(Policy):
    """A model in this process that acts. With `lockstep`, every batch contains all sessions that are still playing, in
    a fixed order, so that the same weights and seeds give the same episodes bit by bit."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        lockstep: bool = False,
        **options: Unpack[SamplingOptions],
    ) -> None:
        self.chat = ChatTokens(tokenizer)
        self.sampler: Sampler | VllmSampler
        self.sampler = Sampler(model, end=self.chat.end, pad=tokenizer.pad_token_id, **options)
        self.batches = 0
        self.expected = 0  # sessions that are about to begin: the first batch waits for them
        self._is_lockstep = lockstep
        self._lead: LocalPolicy | None = None
        self._partners: list[LocalPolicy] = []
        """Policies that play against this one in the same episodes."""
        self._playing: set[LocalPlayer] = set()
        self._waiting: list[_SampleRequest] = []
        self._timer: asyncio.TimerHandle | None = None
        self._generation: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sampling")

    def sample_with(self, generation: VllmGeneration) -> None:
        """Let vLLM write the replies from now on, at the same temperature."""
        ours = self.sampler
        self.sampler = VllmSampler(generation, self.chat.end, ours.context, ours.temperature)

    def join(self, lead: "LocalPolicy") -> None:
        """Play other seats of the lead's episodes in lockstep with it.

        Each episode waits for one policy at a time. When all of them wait, each policy answers its own in one batch.
        """
        self._lead = lead
        lead._partners.append(self)

    def withdraw(self) -> None:
        """End `join`."""
        if self._lead is not None:
            self._lead._partners.remove(self)
            self._lead = None

    async def begin(self, start: EpisodeStart) -> "LocalPlayer":
        self.expected = max(0, self.expected - 1)
        player = LocalPlayer(self, start)
        self._playing.add(player)
        return player

    async def aclose(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def sample(self, player: "LocalPlayer", limit: int) -> Sampled:
        """Wait for the player's reply of at most `limit` tokens, sampled in the next batch."""
        request = _SampleRequest(player, limit, asyncio.get_running_loop().create_future(), perf_counter())
        self._waiting.append(request)
        self._schedule()
        return await request.reply

    def leave(self, player: "LocalPlayer") -> None:
        """Remove a player whose episode has ended, so that the others no longer wait for it."""
        self._playing.discard(player)
        self._waiting = [request for request in self._waiting if request.player is not player]
        self._schedule()

    def _schedule(self) -> None:
        """Start a batch when all sessions wait, or when the window that the first request opened has closed."""
        if self._lead is not None:
            self._lead._schedule()
            return
        waiting = len(self._waiting) + sum(len(partner._waiting) for partner in self._partners)
        if (self._generation is not None and not self._partners) or not waiting:
            return
        all_wait = waiting >= len(self._playing) + self.expected
        if all_wait and self._is_lockstep:
            self._start_batches()
            return
        seconds = LOCKSTEP_SECONDS if self._is_lockstep else SETTLE_SECONDS if all_wait else GATHER_SECONDS
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer.when() <= loop.time() + seconds:
                return
            self._timer.cancel()
        self._timer = loop.call_later(seconds, self._start_batches, 0)

    def _start_batches(self, expected: int | None = None) -> None:
        """Answer all that wait. `expected`: sessions that later batches still wait for, once the window has closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.expected = self.expected if expected is None else expected
        for policy in (self, *self._partners):
            policy._start_batch()

    def _start_batch(self) -> None:
        if self._generation is not None or not self._waiting:
            return
        requests, self._waiting = self._waiting, []
        requests.sort(key=lambda request: request.player.order)
        self._generation = asyncio.get_running_loop().create_task(self._generate(requests))

    async def _generate(self, requests: Sequence[_SampleRequest]) -> None:
        started = perf_counter()
        for request in requests:
            request.player.waited = started - request.requested_at
        try:
            rows = [request.player.row for request in requests]
            limits = [request.limit for request in requests]
            async with boundary(PolicyError, "sampling"):
                replies = await asyncio.get_running_loop().run_in_executor(
                    self._thread, self.sampler.sample, rows, limits
                )
            self.batches += 1
            for request, reply in zip(requests, replies, strict=True):
                if not request.reply.done():
                    request.reply.set_result(reply)
        except PolicyError as error:
            self.sampler.forget()
            for request in requests:
                if not request.reply.done():
                    request.reply.set_exception(error)
        finally:
            self._generation = None
            self._schedule()


class LocalPlayer(Player):
    """One episode of a local policy, with its exact tokens."""

    def __init__(self, policy: LocalPolicy, start: EpisodeStart) -> None:
        self.row = Row([], np.random.Generator(np.random.PCG64(start.seed)))
        self.order = (start.task.index, start.member, start.task.seed, str(start.task.version_id or ""), start.seat)
        self.waited = 0.0  # seconds that the latest request waited for its batch
        self._policy = policy
        proctor = start.manifest.proctor
        self._is_cut = proctor.agent.context.cuts(proctor.episode.max_turns)
        """Whether it reads only a part of the conversation. Each turn is then a separate prompt, and the episode is
        not one sequence."""
        self._trace = TokenTrace()
        self._read = 0  # messages in `row.tokens`, including the reply that the engine appends to its list

    async def act(self, turn: Turn) -> Reply:
        """Sample a reply. Earlier replies keep their sampled tokens; only new messages are tokenized.

        When the conversation has filled the context, there is no reply, and the episode ends with the reward it has.
        Raises LimitExceeded if not even the first prompt fits.
        """
        chat, context = self._policy.chat, self._policy.sampler.context
        if self._is_cut and turn.index:
            self.row = Row([], self.row.random)
        is_opening = not self.row.tokens
        messages = chat.opening(turn.messages) if is_opening else chat.continuation(turn.messages[self._read :])
        if context - 1 - len(self.row.tokens) < len(messages) + 1:  # one token is reserved to close a cut reply
            if is_opening and turn.index == 0:
                message = f"the first prompt has {len(messages):,} tokens; the model reads at most {context:,}"
                raise LimitExceeded(message)
            return Reply("", len(self.row.tokens), 0, is_truncated=True, is_context_full=True)
        self.row.tokens += messages
        if is_opening:
            self._trace.prompt = list(messages)
        else:
            self._trace.append(messages)
        self._read = len(turn.messages) + 1
        tokens_in = len(self.row.tokens)
        sampled = await self._policy.sample(self, min(turn.max_tokens, context - 1 - tokens_in))
        self._trace.append(sampled.tokens, sampled.logprobs)
        is_truncated = sampled.tokens[-1] != chat.end
        if is_truncated:
            self.row.tokens.append(chat.end)
            self._trace.append([chat.end])
        text = chat.text_of(sampled.tokens)
        is_full = is_truncated and context - 1 - tokens_in <= turn.max_tokens
        return Reply(text, tokens_in, len(sampled.tokens), is_truncated, is_full, queue_seconds=self.waited)

    def trace(self) -> TokenTrace | None:
        return None if self._is_cut or not self._trace.prompt else self._trace

    def close(self) -> None:
        self._policy.leave(self)
