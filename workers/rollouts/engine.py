"""The rollout engine: one asyncio loop that drives hundreds of episodes.

A bad rollout is data: it is retried, then handed over as failed, with a null reward, and its siblings go on. Only a
run of failures (the circuit breaker) or an error in what receives the rollouts ends the whole.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import perf_counter
from typing import TYPE_CHECKING

from backend.domain.environments.manifest import Manifest
from backend.domain.errors import LimitExceeded, RolloutError
from backend.domain.policies.prices import Price, cost_of
from backend.domain.rollouts.rollout import Rollout, TaskSpec
from backend.domain.vocabulary import Phase, RolloutStatus
from workers.policies.base import EpisodeStart, Measured, Policy
from workers.rollouts.circuit_breaker import CircuitBreaker, TooManyFailures
from workers.rollouts.concurrency import ConcurrencyLimiter
from workers.rollouts.episode import Episode, Rules
from workers.rollouts.grouped import SlotPool, fail_together, patient, play_together
from workers.rollouts.stopping import unless_stopped

if TYPE_CHECKING:
    from workers.environments.client import EnvServer

__all__ = ["GroupPlan", "TooManyFailures", "play_groups", "policy_seed"]

RETRY_SECONDS = 0.25
"""Before the second attempt; doubles each time."""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """A task and which of its group's rollouts are to be played."""

    task: TaskSpec
    ordinal: int
    members: tuple[int, ...]
    size: int = 0
    """Of the whole group; 0: those members are all."""

    @property
    def whole(self) -> range:
        """All members, played before or not."""
        return range(self.size or len(self.members))


OnRollout = Callable[[Rollout], Awaitable[None] | None]
"""Takes each rollout as it ends. When it returns an awaitable, the episode's place stays taken until that is done."""


def _never() -> bool:
    return False


def _nobody(limit: int) -> None:
    """Nobody asks how many episodes may be in flight."""


async def play_groups(
    plans: Iterable[GroupPlan] | AsyncIterable[GroupPlan],
    *,
    server: "EnvServer",
    policy: Policy,
    manifest: Manifest,
    phase: Phase,
    seed: int,
    concurrency: int,
    on_rollout: OnRollout,
    should_stop: Callable[[], bool] = _never,
    training_step: int | None = None,
    max_attempts: int = 3,
    keep_steps: bool = True,
    keep_cancelled: bool = False,
    price: Price | None = None,
    on_limit: Callable[[int], None] = _nobody,
) -> None:
    """Play every member of every group, at most `concurrency` at a time and fewer where less is borne (`on_limit`).

    Returns early when told to stop. What is in flight then is dropped, or with `keep_cancelled` handed over as it is.
    Raises TooManyFailures when most of the recent rollouts failed.
    """
    is_grouped = manifest.proctor.tasks.grouped
    pool = _RolloutPool(
        jobs=_jobs(plans, is_grouped=is_grouped),
        rules=Rules(patient(manifest) if is_grouped else manifest, server.action_schema),
        server=server,
        policy=policy,
        phase=phase,
        seed=seed,
        on_rollout=on_rollout,
        training_step=training_step,
        max_attempts=max_attempts,
        keep_steps=keep_steps,
        keep_cancelled=keep_cancelled,
        price=price,
        breaker=CircuitBreaker(),
        places=SlotPool(min(concurrency, server.sessions)),
        limiter=ConcurrencyLimiter(
            min(concurrency, server.sessions), policy.effort if isinstance(policy, Measured) else None, on_limit
        ),
    )
    await unless_stopped(pool.play(), should_stop)


def policy_seed(seed: int, task: TaskSpec, member: int, training_step: int | None = None) -> int:
    """The policy's randomness in one episode: 63 bits, the same on every machine and in every order of play."""
    text = f"{seed}/{training_step}/{task.split}/{task.index}/{task.seed}/{member}"
    if task.version_id is not None:
        text += f"/{task.version_id}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


async def _jobs(
    plans: Iterable[GroupPlan] | AsyncIterable[GroupPlan], *, is_grouped: bool
) -> AsyncIterator[tuple[GroupPlan, int]]:
    """One by one, so that what is still to be played is never held in memory. A group that is scored whole is one."""
    if isinstance(plans, AsyncIterable):
        async for plan in plans:
            for member in plan.members[:1] if is_grouped else plan.members:
                yield plan, member
        return
    for plan in plans:
        for member in plan.members[:1] if is_grouped else plan.members:
            yield plan, member


@dataclass(slots=True)
class _RolloutPool:
    """As many workers as episodes may be in flight, who take their jobs from one iterator."""

    jobs: AsyncIterator[tuple[GroupPlan, int]]
    rules: Rules
    server: "EnvServer"
    policy: Policy
    phase: Phase
    seed: int
    on_rollout: OnRollout
    training_step: int | None
    max_attempts: int
    keep_steps: bool
    keep_cancelled: bool
    price: Price | None
    breaker: CircuitBreaker
    limiter: ConcurrencyLimiter
    places: SlotPool
    """For groups that are scored whole."""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Who takes the next job."""
    _left: list[Rollout] = field(default_factory=list)
    """Cancelled, or ended and not yet handed over when all was cancelled."""

    async def play(self) -> None:
        tasks = [asyncio.create_task(self._work()) for _ in range(self.limiter.ceiling)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for rollout in self._left:
                await self._hand_over(rollout)

    async def _work(self) -> None:
        while True:
            async with self.limiter.gate:
                async with self._turn:
                    job = await anext(self.jobs, None)
                if job is None:
                    return
                is_grouped = self.rules.manifest.proctor.tasks.grouped
                for rollout in await self._group(job[0]) if is_grouped else [await self._rollout(*job)]:
                    try:
                        await self._hand_over(rollout)
                    except asyncio.CancelledError:
                        self._leave(rollout)
                        raise
                    self.limiter.saw(rollout)
                    self.breaker.record(rollout)

    async def _hand_over(self, rollout: Rollout) -> None:
        if not self.keep_steps:
            rollout.opening, rollout.steps, rollout.messages = {}, [], []
        waiting = self.on_rollout(rollout)
        if waiting is not None:
            await waiting

    def _leave(self, rollout: Rollout) -> None:
        """To be handed over when all others have ended."""
        if self.keep_cancelled:
            self._left.append(rollout)

    async def _rollout(self, plan: GroupPlan, member: int) -> Rollout:
        """Play until it succeeds, cannot be helped or was tried often enough; each attempt on a fresh session."""
        seed = policy_seed(self.seed, plan.task, member, self.training_step)
        start = EpisodeStart(plan.task, self.rules.manifest, member, seed)
        rollout = self._blank(plan, member)
        try:
            while not await self._attempt(rollout, start) and rollout.attempts < self.max_attempts:
                pause = RETRY_SECONDS * 2 ** (rollout.attempts - 1)
                await asyncio.sleep(pause)
                rollout = self._again(rollout, plan, pause)
        except asyncio.CancelledError:
            self._cancelled(rollout)
            raise
        return rollout

    async def _group(self, plan: GroupPlan) -> list[Rollout]:
        """Play all members at a time, as often as one of them fails; those that were wanted.

        Members that were recorded before are played again beside the others, which are compared with them.
        """
        starts = [
            EpisodeStart(
                plan.task, self.rules.manifest, member, policy_seed(self.seed, plan.task, member, self.training_step)
            )
            for member in plan.whole
        ]
        rollouts = [self._blank(plan, member) for member in plan.whole]
        try:
            async with self.places.taken(len(rollouts)):
                while not await self._attempt_together(rollouts, starts) and rollouts[0].attempts < self.max_attempts:
                    pause = RETRY_SECONDS * 2 ** (rollouts[0].attempts - 1)
                    await asyncio.sleep(pause)
                    rollouts = [self._again(rollout, plan, pause) for rollout in rollouts]
        except LimitExceeded as error:
            fail_together(rollouts, error)
        except asyncio.CancelledError:
            for rollout in rollouts:
                self._cancelled(rollout)
            raise
        return [rollout for rollout in rollouts if rollout.member in plan.members]

    async def _attempt_together(self, rollouts: list[Rollout], starts: list[EpisodeStart]) -> bool:
        """Fill the rollouts, all or none. True when they succeeded, or another attempt would be of no use."""
        is_final = True
        try:
            await play_together(self.server, self.rules, self.policy, rollouts, starts)
        except RolloutError as error:
            fail_together(rollouts, error)
            is_final = not error.is_retryable
        finally:
            if self.price is not None:
                for rollout in rollouts:
                    rollout.cost = (rollout.cost or 0.0) + self._cost(self.price, rollout)
        for rollout in rollouts:
            rollout.ended_at = datetime.now(UTC)
        return is_final

    def _cancelled(self, rollout: Rollout) -> None:
        rollout.status, rollout.stop_reason = RolloutStatus.CANCELLED, None
        rollout.ended_at = datetime.now(UTC)
        self._leave(rollout)

    def _again(self, failed: Rollout, plan: GroupPlan, pause: float) -> Rollout:
        """A fresh one that remembers what the attempts before it took."""
        rollout = self._blank(plan, failed.member)
        rollout.attempts = failed.attempts + 1
        rollout.queue_seconds = failed.queue_seconds + pause
        rollout.cost = failed.cost
        return rollout

    def _blank(self, plan: GroupPlan, member: int) -> Rollout:
        return Rollout(
            task=plan.task,
            phase=self.phase,
            group=plan.ordinal,
            member=member,
            status=RolloutStatus.FAILED,
            training_step=self.training_step,
            started_at=datetime.now(UTC),
        )

    async def _attempt(self, rollout: Rollout, start: EpisodeStart) -> bool:
        """Fill the rollout. True when it succeeded, or another attempt would be of no use."""
        is_final = True
        began = perf_counter()
        try:
            async with self.server.session() as session:
                rollout.queue_seconds += perf_counter() - began
                await Episode(self.rules, session, rollout).play(self.policy, start)
        except RolloutError as error:
            rollout.error_kind, rollout.error_message = error.kind, str(error)
            is_final = not error.is_retryable
        finally:
            if self.price is not None:
                rollout.cost = (rollout.cost or 0.0) + self._cost(self.price, rollout)
        rollout.ended_at = datetime.now(UTC)
        return is_final

    @staticmethod
    def _cost(price: Price, rollout: Rollout) -> float:
        return cost_of(price, rollout.tokens_in, rollout.tokens_out, rollout.tokens_cached) or 0.0
