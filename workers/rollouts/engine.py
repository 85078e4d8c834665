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
from collections import defaultdict
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime
from time import perf_counter
from typing import TYPE_CHECKING

from backend.domain.environments.manifest import Manifest
from backend.domain.errors import LimitExceeded, RolloutError
from backend.domain.policies.prices import Price, cost_of
from backend.domain.rollouts.divergence import RecordedEpisode
from backend.domain.rollouts.rollout import Rollout, Seats, TaskSpec, turns_of
from backend.domain.vocabulary import Phase, RolloutStatus, StopReason
from workers.policies.base import EpisodeStart, Policy, Reply
from workers.policies.scripted import ReplayPolicy
from workers.rollouts.limits import (
    CircuitBreaker,
    ConcurrencyLimiter,
    SlotPool,
    TooManyFailures,
    first_rollout_error,
    unless_stopped,
)
from workers.rollouts.seats import AssignSeats, SeatAssignment, SeatPolicy, own_seat, play_episode

if TYPE_CHECKING:
    from workers.environments.client import EnvServer, EnvSession

__all__ = [
    "GroupPlan",
    "ReplayedEpisode",
    "RolloutPool",
    "StoredEpisode",
    "TooManyFailures",
    "policy_seed",
    "replay_episodes",
]

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


OnRollout = Callable[[Rollout], Awaitable[None] | None]
"""Receives each rollout as it ends. If it returns an awaitable, the episode keeps its slot until that is done."""


def policy_seed(seed: int, task: TaskSpec, member: int, training_step: int | None = None) -> int:
    """Return the seed of the policy's sampling in one episode: 63 bits, the same on every machine and in any order."""
    text = f"{seed}/{training_step}/{task.split}/{task.index}/{task.seed}/{member}"
    if task.version_id is not None:
        text += f"/{task.version_id}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


@dataclass
class RolloutPool:
    """Plays every member of every group, at most `concurrency` at a time and fewer during an overload (`on_limit`)."""

    plans: Iterable[GroupPlan] | AsyncIterable[GroupPlan]
    _: KW_ONLY
    server: "EnvServer"
    policy: Policy
    manifest: Manifest
    phase: Phase
    seed: int
    concurrency: int
    on_rollout: OnRollout
    should_stop: Callable[[], bool] = lambda: False
    training_step: int | None = None
    max_attempts: int = 3
    keep_cancelled: bool = False
    """Hand over rollouts that were under way when a stop was requested."""
    price: Price | None = None
    seats: AssignSeats | None = None
    """Who takes the other seats of an environment that has seats. Default: the manifest's script."""
    on_limit: Callable[[int], None] = lambda limit: None

    def __post_init__(self) -> None:
        concurrency, block = min(self.concurrency, self.server.sessions), self.manifest.proctor
        self._is_grouped = block.tasks.grouped
        if self._is_grouped:  # a step may wait for the siblings for the whole episode
            seconds = block.episode.episode_timeout_seconds
            limits = block.episode.model_copy(update={"step_timeout_seconds": seconds})
            self.manifest = self.manifest.model_copy(update={"proctor": block.model_copy(update={"episode": limits})})
        self._limiter = ConcurrencyLimiter(concurrency, getattr(self.policy, "adaptive_limit", None), self.on_limit)
        self._slots = SlotPool(concurrency)
        self._breaker = CircuitBreaker()
        self._jobs, self._jobs_lock = self._iterate_jobs(), asyncio.Lock()
        self._unsent: list[Rollout] = []
        """Canceled, or not yet handed over when everything was canceled."""

    async def play(self) -> None:
        """Returns early if a stop is requested. Raises TooManyFailures if most of the recent rollouts failed."""
        await unless_stopped(self._run(), self.should_stop)

    async def _iterate_jobs(self) -> AsyncIterator[tuple[GroupPlan, Sequence[int]]]:
        """Iterate over the members to play: one by one, or whole groups. Pending ones are never held in memory."""
        plans = iter(self.plans) if isinstance(self.plans, Iterable) else aiter(self.plans)
        while plan := next(plans, None) if isinstance(plans, Iterator) else await anext(plans, None):
            for members in [plan.whole] if self._is_grouped else [(member,) for member in plan.members]:
                yield plan, members

    async def _run(self) -> None:
        workers = [asyncio.create_task(self._work()) for _ in range(self._limiter.ceiling)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            for rollout in self._unsent if self.keep_cancelled else ():
                if (waiting := self.on_rollout(rollout)) is not None:
                    await waiting

    async def _work(self) -> None:
        while True:
            await self._limiter.gate.enter()
            try:
                async with self._jobs_lock:
                    job = await anext(self._jobs, None)
                if job is None:
                    return
                for rollout in await self._play(*job):
                    try:
                        if (waiting := self.on_rollout(rollout)) is not None:
                            await waiting
                    except asyncio.CancelledError:
                        self._unsent.append(rollout)
                        raise
                    self._limiter.record(rollout)
                    self._breaker.record(rollout)
            finally:
                self._limiter.gate.leave()

    async def _play(self, plan: GroupPlan, members: Sequence[int]) -> list[Rollout]:
        """Play until it succeeds, cannot succeed or has used all attempts; each attempt on fresh sessions.

        Members of a group that were recorded before are played again next to the others, which are compared with them,
        and excluded from the result.
        """
        seeds = {member: policy_seed(self.seed, plan.task, member, self.training_step) for member in members}
        starts = [EpisodeStart(plan.task, self.manifest, *each) for each in seeds.items()]
        rollouts = [self._new_rollout(plan, member) for member in members]
        try:
            async with self._slots.take(len(members)) if self._is_grouped else nullcontext():
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
            if self._is_grouped:
                await self._play_together(rollouts, starts)
            else:
                start = perf_counter()
                async with self.server.session() as session:
                    rollouts[0].queue_seconds += perf_counter() - start
                    await self._play_member(session, rollouts[0], starts[0])
        except RolloutError as error:
            _fail_together(rollouts, error)
            is_final = not error.is_retryable
        finally:
            for each in rollouts:
                costs = [play.cost for play in each.seats.others] if each.seats else []
                if self.price is not None:
                    costs.append(cost_of(self.price, each.tokens_in, each.tokens_out, each.tokens_cached))
                    for step in each.steps:
                        step.cost = cost_of(
                            self.price, step.tokens_in or 0, step.tokens_out or 0, step.tokens_cached or 0
                        )
                if (known := [cost for cost in costs if cost is not None]) or self.price is not None:
                    each.cost = (each.cost or 0.0) + sum(known)
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
            with first_rollout_error():
                async with self.server.sessions_together(len(rollouts)) as sessions, asyncio.TaskGroup() as members:
                    for session, rollout, start in zip(sessions, rollouts, starts, strict=True):
                        members.create_task(self._play_member(session, rollout, start))
        finally:
            for rollout in rollouts:
                rollout.task = task

    async def _play_member(self, session: "EnvSession", rollout: Rollout, start: EpisodeStart) -> None:
        try:
            schema = self.server.action_schema
            await play_episode(self.manifest, schema, session, rollout, self.policy, start, self.seats)
        except RolloutError as error:
            rollout.error_kind, rollout.error_message = error.kind, str(error)
            raise


def _fail_together(rollouts: Sequence[Rollout], error: RolloutError) -> None:
    """Without one of its members a group has no rewards, not even for members that were ready."""
    for rollout in rollouts:
        rollout.status = RolloutStatus.FAILED
        rollout.reward, rollout.columns = None, {}
        if rollout.error_kind is None:
            others = "another member of its group failed: " if len(rollouts) > 1 else ""
            rollout.error_kind, rollout.error_message = error.kind, f"{others}{error}"


@dataclass(frozen=True, slots=True)
class StoredEpisode:
    """A stored rollout as far as it is needed to replay it and compare the result."""

    id: uuid.UUID
    task: TaskSpec
    recorded: RecordedEpisode = field(repr=False)
    columns: Mapping[str, float] = field(default_factory=dict)
    stop_reason: StopReason | None = None
    tokens_out: int = 0
    is_truncated: bool = False
    seats: Seats | None = None
    """Set if several policies played the episode: all of them are replayed."""


@dataclass(slots=True)
class ReplayedEpisode:
    """A replayed episode and the stored one."""

    episode: StoredEpisode
    rollout: Rollout
    replies_ended: bool = False
    """The environment needed another reply, but none was stored."""

    @property
    def replies_left(self) -> int:
        return len(self.episode.recorded.steps) - len(self.rollout.steps)


async def replay_episodes(
    episodes: Sequence[StoredEpisode], *, server: "EnvServer", manifest: Manifest, concurrency: int
) -> list[ReplayedEpisode]:
    """Replay the episodes that have replies. An episode gets as many turns as it has replies.

    Raises TooManyFailures as the engine does.
    """
    replayed: list[ReplayedEpisode] = []
    by_turns: defaultdict[int, list[StoredEpisode]] = defaultdict(list)
    for stored in episodes:
        if stored.recorded.steps:
            by_turns[sum(turns_of(step) for step in stored.recorded.steps)].append(stored)
    for turns, batch in sorted(by_turns.items()):
        replies = []
        for each in batch:  # tokens are stored per episode: divided evenly, their sum and mean are right
            texts = [str(step.get("reply") or "") for step in each.recorded.steps]
            tokens, more = divmod(each.tokens_out, len(texts))
            replies.append([Reply(text, tokens_out=tokens + (n < more)) for n, text in enumerate(texts)])
            replies[-1][-1].is_truncated = each.is_truncated
            replies[-1][-1].is_context_full = each.stop_reason is StopReason.CONTEXT_FULL
        max_turns = manifest.proctor.episode.max_turns
        limited = manifest.with_max_turns(min(turns, max_turns))

        def keep(rollout: Rollout, batch: Sequence[StoredEpisode] = batch, is_short: bool = turns < max_turns) -> None:
            episode = batch[rollout.member]
            has_stopped = rollout.stop_reason is StopReason.MAX_TURNS and is_short
            if has_stopped:
                rollout.stop_reason = episode.stop_reason
            replies_ended = has_stopped and episode.stop_reason is not StopReason.CONTEXT_FULL
            replayed.append(ReplayedEpisode(episode, rollout, replies_ended))

        def assign(
            rollout: Rollout, batch: Sequence[StoredEpisode] = batch, max_turns: int = max_turns
        ) -> SeatAssignment:
            seats = batch[rollout.member].seats
            if seats is None:  # stored before the environment had seats
                return SeatAssignment(own_seat(manifest, rollout))
            others = {}
            for play in seats.others:
                texts = [Reply(step.reply) for step in play.steps]
                if texts and play.stop_reason in {StopReason.TOKEN_LIMIT, StopReason.CONTEXT_FULL}:
                    texts[-1].is_truncated = True
                    texts[-1].is_context_full = play.stop_reason is StopReason.CONTEXT_FULL
                policy = ReplayPolicy({rollout.member: texts})
                others[play.seat] = SeatPolicy(play.policy, policy, max_turns=max_turns)
            return SeatAssignment(seats.seat, others)

        await RolloutPool(
            [GroupPlan(episode.task, number, (number,)) for number, episode in enumerate(batch)],
            server=server,
            policy=ReplayPolicy(replies),
            manifest=limited,
            phase=Phase.EVALUATION,
            seed=0,
            concurrency=concurrency,
            on_rollout=keep,
            seats=assign,
        ).play()
    return replayed
