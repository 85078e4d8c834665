"""The rollout engine: one asyncio loop that runs hundreds of episodes.

A failed rollout is data: it is retried, then handed over with a null reward, and its siblings continue. Only many
failures in a row (the circuit breaker) or an error in the receiver of the rollouts end the whole.

Groups that are scored together play at the same time, on one server, and succeed or fail together. Their resets get
`group`, a name that no other group or attempt has, and `group_size`. The environment answers each member's last step
once the last member has ended, so a member that fails ends its siblings at once.
"""

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from time import perf_counter
from typing import TYPE_CHECKING

from backend.domain.environments.manifest import Manifest
from backend.domain.errors import LimitExceeded, RolloutError
from backend.domain.policies.prices import Price, cost_of
from backend.domain.rollouts.rollout import Rollout, TaskSpec
from backend.domain.vocabulary import Phase, RolloutStatus
from workers.policies.base import EpisodeStart, Policy
from workers.rollouts.episode import Episode, Rules
from workers.rollouts.limits import CircuitBreaker, ConcurrencyLimiter, SlotPool, TooManyFailures, unless_stopped

if TYPE_CHECKING:
    from workers.environments.client import EnvServer, EnvSession

__all__ = ["GroupPlan", "TooManyFailures", "play_groups", "policy_seed"]

RETRY_SECONDS = 0.25
"""Before the second attempt; doubles each time."""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """A task, and the rollouts of its group to play."""

    task: TaskSpec
    ordinal: int
    members: tuple[int, ...]
    size: int = 0
    """Size of the whole group. 0: the group has only these members."""

    @property
    def whole(self) -> range:
        """All members, whether or not they were played before."""
        return range(self.size or len(self.members))


GroupPlans = Iterable[GroupPlan] | AsyncIterable[GroupPlan]
OnRollout = Callable[[Rollout], Awaitable[None] | None]
"""Receives each rollout as it ends. If it returns an awaitable, the episode keeps its slot until that is done."""


async def play_groups(
    plans: GroupPlans,
    *,
    server: "EnvServer",
    policy: Policy,
    manifest: Manifest,
    phase: Phase,
    seed: int,
    concurrency: int,
    on_rollout: OnRollout,
    should_stop: Callable[[], bool] = lambda: False,
    training_step: int | None = None,
    max_attempts: int = 3,
    keep_steps: bool = True,
    keep_cancelled: bool = False,
    price: Price | None = None,
    on_limit: Callable[[int], None] = lambda limit: None,
) -> None:
    """Play every member of every group, at most `concurrency` at a time and fewer during an overload (`on_limit`).

    Returns early if a stop is requested. Rollouts under way are then dropped, or handed over with `keep_cancelled`.
    Raises TooManyFailures if most of the recent rollouts failed.
    """
    if is_grouped := manifest.proctor.tasks.grouped:  # a step may wait for the siblings for the whole episode
        limits = manifest.proctor.episode
        limits = limits.model_copy(update={"step_timeout_seconds": limits.episode_timeout_seconds})
        manifest = manifest.model_copy(update={"proctor": manifest.proctor.model_copy(update={"episode": limits})})
    concurrency = min(concurrency, server.sessions)
    pool = _RolloutPool(
        jobs=_jobs(plans, is_grouped=is_grouped),
        is_grouped=is_grouped,
        rules=Rules(manifest, server.action_schema),
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
        slots=SlotPool(concurrency),
        limiter=ConcurrencyLimiter(concurrency, getattr(policy, "adaptive_limit", None), on_limit),
    )
    await unless_stopped(pool.run(), should_stop)


def policy_seed(seed: int, task: TaskSpec, member: int, training_step: int | None = None) -> int:
    """Return the seed of the policy's sampling in one episode: 63 bits, the same on every machine and in any order."""
    text = f"{seed}/{training_step}/{task.split}/{task.index}/{task.seed}/{member}"
    if task.version_id is not None:
        text += f"/{task.version_id}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


async def _jobs(plans: GroupPlans, *, is_grouped: bool) -> AsyncIterator[tuple[GroupPlan, Sequence[int]]]:
    """Iterate over the members to play: one by one, or whole groups. Pending ones are never held in memory."""
    if isinstance(plans, AsyncIterable):
        async for plan in plans:
            for members in [plan.whole] if is_grouped else [(member,) for member in plan.members]:
                yield plan, members
        return
    for plan in plans:
        for members in [plan.whole] if is_grouped else [(member,) for member in plan.members]:
            yield plan, members


@dataclass(slots=True)
class _RolloutPool:
    """Concurrent workers that take their jobs from one iterator."""

    jobs: AsyncIterator[tuple[GroupPlan, Sequence[int]]]
    is_grouped: bool
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
    limiter: ConcurrencyLimiter
    slots: SlotPool
    """For groups that are scored together."""
    breaker: CircuitBreaker = field(default_factory=CircuitBreaker)
    _jobs_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _unsent: list[Rollout] = field(default_factory=list)
    """Canceled, or not yet handed over when everything was canceled."""

    async def run(self) -> None:
        workers = [asyncio.create_task(self._work()) for _ in range(self.limiter.ceiling)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            for rollout in self._unsent if self.keep_cancelled else ():
                await self._hand_over(rollout)

    async def _work(self) -> None:
        while True:
            await self.limiter.gate.enter()
            try:
                async with self._jobs_lock:
                    job = await anext(self.jobs, None)
                if job is None:
                    return
                for rollout in await self._play(*job):
                    try:
                        await self._hand_over(rollout)
                    except asyncio.CancelledError:
                        self._unsent.append(rollout)
                        raise
                    self.limiter.record(rollout)
                    self.breaker.record(rollout)
            finally:
                self.limiter.gate.leave()

    async def _hand_over(self, rollout: Rollout) -> None:
        if not self.keep_steps:
            rollout.opening, rollout.steps, rollout.messages = {}, [], []
        waiting = self.on_rollout(rollout)
        if waiting is not None:
            await waiting

    async def _play(self, plan: GroupPlan, members: Sequence[int]) -> list[Rollout]:
        """Play until it succeeds, cannot succeed or has used all attempts; each attempt on fresh sessions.

        Members of a group that were recorded before are played again next to the others, which are compared with them,
        and excluded from the result.
        """
        seeds = [policy_seed(self.seed, plan.task, member, self.training_step) for member in members]
        starts = [
            EpisodeStart(plan.task, self.rules.manifest, member, seed)
            for member, seed in zip(members, seeds, strict=True)
        ]
        rollouts = [self._new_rollout(plan, member) for member in members]
        try:
            async with self.slots.take(len(members)) if self.is_grouped else nullcontext():
                while not await self._attempt(rollouts, starts) and rollouts[0].attempts < self.max_attempts:
                    pause = RETRY_SECONDS * 2 ** (rollouts[0].attempts - 1)
                    await asyncio.sleep(pause)
                    rollouts = [self._new_rollout(plan, failed.member, failed, pause) for failed in rollouts]
        except LimitExceeded as error:
            _fail_together(rollouts, error)
        except asyncio.CancelledError:
            for rollout in rollouts:
                rollout.status, rollout.stop_reason = RolloutStatus.CANCELLED, None
                rollout.ended_at = datetime.now(UTC)
            self._unsent += rollouts
            raise
        return [rollout for rollout in rollouts if rollout.member in plan.members]

    def _new_rollout(self, plan: GroupPlan, member: int, failed: Rollout | None = None, pause: float = 0.0) -> Rollout:
        """A blank rollout, which remembers what failed attempts before it took."""
        rollout = Rollout(
            task=plan.task,
            phase=self.phase,
            group=plan.ordinal,
            member=member,
            status=RolloutStatus.FAILED,
            training_step=self.training_step,
            started_at=datetime.now(UTC),
        )
        if failed is not None:
            rollout.attempts = failed.attempts + 1
            rollout.queue_seconds = failed.queue_seconds + pause
            rollout.cost = failed.cost
        return rollout

    async def _attempt(self, rollouts: list[Rollout], starts: Sequence[EpisodeStart]) -> bool:
        """Fill the rollouts. True if they succeeded or another attempt would be useless."""
        is_final = True
        try:
            if self.is_grouped:
                await self._play_together(rollouts, starts)
            else:
                start = perf_counter()
                async with self.server.session() as session:
                    rollouts[0].queue_seconds += perf_counter() - start
                    await Episode(self.rules, session, rollouts[0]).play(self.policy, starts[0])
        except RolloutError as error:
            if self.is_grouped:
                _fail_together(rollouts, error)
            else:
                rollouts[0].error_kind, rollouts[0].error_message = error.kind, str(error)
            is_final = not error.is_retryable
        finally:
            if self.price is not None:
                for each in rollouts:
                    cost = cost_of(self.price, each.tokens_in, each.tokens_out, each.tokens_cached)
                    each.cost = (each.cost or 0.0) + (cost or 0.0)
        for rollout in rollouts:
            rollout.ended_at = datetime.now(UTC)
        return is_final

    async def _play_together(self, rollouts: Sequence[Rollout], starts: Sequence[EpisodeStart]) -> None:
        """Fill the rollouts of one group. Raises the first member's RolloutError; the others are canceled."""
        task = rollouts[0].task
        arguments = {**task.arguments, "group": uuid.uuid4().hex, "group_size": len(rollouts)}
        for rollout in rollouts:
            rollout.task = replace(task, arguments=arguments)
        try:
            async with self.server.sessions_together(len(rollouts)) as sessions, asyncio.TaskGroup() as members:
                for session, rollout, start in zip(sessions, rollouts, starts, strict=True):
                    members.create_task(self._play_member(session, rollout, start))
        except ExceptionGroup as errors:
            failed, others = errors.split(RolloutError)
            if failed is None or others is not None:
                raise
            first: BaseException = failed
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            raise first from None
        finally:
            for rollout in rollouts:
                rollout.task = task

    async def _play_member(self, session: "EnvSession", rollout: Rollout, start: EpisodeStart) -> None:
        try:
            await Episode(self.rules, session, rollout).play(self.policy, start)
        except RolloutError as error:
            rollout.error_kind, rollout.error_message = error.kind, str(error)
            raise


def _fail_together(rollouts: Sequence[Rollout], error: RolloutError) -> None:
    """Without one of its members a group has no rewards, not even for members that were ready."""
    for rollout in rollouts:
        rollout.status = RolloutStatus.FAILED
        rollout.reward, rollout.columns = None, {}
        if rollout.error_kind is None:
            rollout.error_kind, rollout.error_message = error.kind, f"another member of its group failed: {error}"
