"""The rollout engine: one asyncio loop that drives hundreds of episodes.

A bad rollout is data: it is retried, then handed over as failed, with a null reward, and its siblings go on. Only a
run of failures (the circuit breaker) or an error in what receives the rollouts ends the whole.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from backend.domain.errors import RolloutError
from backend.domain.manifest import Manifest
from backend.domain.rollouts import Rollout, TaskSpec
from backend.domain.vocabulary import Phase, RolloutStatus
from workers.policies.base import EpisodeStart, Policy
from workers.rollouts.breaker import CircuitBreaker, TooManyFailures
from workers.rollouts.episode import Episode, Rules
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


OnRollout = Callable[[Rollout], Awaitable[None] | None]
"""Takes each rollout as it ends. When it returns an awaitable, the episode's place stays taken until that is done."""


def _never() -> bool:
    return False


async def play_groups(
    plans: Iterable[GroupPlan],
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
) -> None:
    """Play every member of every group. Returns early when told to stop; what is in flight then is dropped.

    Raises TooManyFailures when most of the recent rollouts failed.
    """
    crew = _Crew(
        jobs=((plan, member) for plan in plans for member in plan.members),
        rules=Rules(manifest, server.action_schema),
        server=server,
        policy=policy,
        phase=phase,
        seed=seed,
        on_rollout=on_rollout,
        training_step=training_step,
        max_attempts=max_attempts,
        keep_steps=keep_steps,
        breaker=CircuitBreaker(),
    )
    await unless_stopped(crew.play(max(1, min(concurrency, server.sessions))), should_stop)


def policy_seed(seed: int, task: TaskSpec, member: int, training_step: int | None = None) -> int:
    """The policy's randomness in one episode: 63 bits, the same on every machine and in every order of play."""
    text = f"{seed}/{training_step}/{task.split}/{task.index}/{task.seed}/{member}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


@dataclass(slots=True)
class _Crew:
    """As many workers as episodes may be in flight, who take their jobs from one iterator."""

    jobs: Iterator[tuple[GroupPlan, int]]
    rules: Rules
    server: "EnvServer"
    policy: Policy
    phase: Phase
    seed: int
    on_rollout: OnRollout
    training_step: int | None
    max_attempts: int
    keep_steps: bool
    breaker: CircuitBreaker

    async def play(self, workers: int) -> None:
        tasks = [asyncio.create_task(self._work()) for _ in range(workers)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self) -> None:
        for plan, member in self.jobs:
            rollout = await self._rollout(plan, member)
            if not self.keep_steps:
                rollout.opening, rollout.steps, rollout.messages = {}, [], []
            waiting = self.on_rollout(rollout)
            if waiting is not None:
                await waiting
            self.breaker.record(rollout)

    async def _rollout(self, plan: GroupPlan, member: int) -> Rollout:
        """Play until it succeeds, cannot be helped or was tried often enough; each attempt on a fresh session."""
        seed = policy_seed(self.seed, plan.task, member, self.training_step)
        start = EpisodeStart(plan.task, self.rules.manifest, member, seed)
        for attempt in range(1, self.max_attempts + 1):
            rollout, is_final = await self._attempt(plan, start, attempt)
            if is_final or attempt == self.max_attempts:
                break
            await asyncio.sleep(RETRY_SECONDS * 2 ** (attempt - 1))
        return rollout

    async def _attempt(self, plan: GroupPlan, start: EpisodeStart, attempt: int) -> tuple[Rollout, bool]:
        rollout = Rollout(
            task=plan.task,
            phase=self.phase,
            group=plan.ordinal,
            member=start.member,
            status=RolloutStatus.FAILED,
            attempts=attempt,
            training_step=self.training_step,
            started_at=datetime.now(UTC),
        )
        is_final = True
        try:
            async with self.server.session() as session:
                await Episode(self.rules, session, rollout).play(self.policy, start)
        except RolloutError as error:
            rollout.error_kind, rollout.error_message = error.kind, str(error)
            is_final = not error.is_retryable
        rollout.ended_at = datetime.now(UTC)
        return rollout, is_final
