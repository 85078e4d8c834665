"""Groups whose members are scored together: they play at a time, on one server, and all count or none.

The environment is told with the reset: `group`, a name that no other group and no other attempt has, and `group_size`.
It answers each member's last step when the last member has ended. A member that fails ends its siblings at once: what
would compare them is not there, and nobody waits for it.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from backend.domain.environments.manifest import Manifest
from backend.domain.errors import LimitExceeded, RolloutError
from backend.domain.rollouts.rollout import Rollout
from backend.domain.vocabulary import RolloutStatus
from workers.policies.base import EpisodeStart, Policy
from workers.rollouts.episode import Episode, Rules

if TYPE_CHECKING:
    from workers.environments.client import EnvServer, EnvSession


def patient(manifest: Manifest) -> Manifest:
    """A step may wait for the siblings, so it has the time of the whole episode."""
    limits = manifest.proctor.episode
    longer = limits.model_copy(update={"step_timeout_seconds": limits.episode_timeout_seconds})
    return manifest.model_copy(update={"proctor": manifest.proctor.model_copy(update={"episode": longer})})


class SlotPool:
    """Episodes that may be in flight; a group takes as many as it has members, one group after the other."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = asyncio.Semaphore(count)
        self._next = asyncio.Lock()

    @asynccontextmanager
    async def taken(self, count: int) -> AsyncIterator[None]:
        """Raises LimitExceeded for a group that never fits."""
        if count > self._count:
            raise LimitExceeded(
                f"the {count} episodes of a group are scored together, but only {self._count} may be played at a time: "
                "raise the concurrency or make the groups smaller"
            )
        held = 0
        try:
            async with self._next:  # two half groups would wait for each other for ever
                while held < count:
                    await self._free.acquire()
                    held += 1
            yield
        finally:
            for _ in range(held):
                self._free.release()


async def play_together(
    server: "EnvServer", rules: Rules, policy: Policy, rollouts: Sequence[Rollout], starts: Sequence[EpisodeStart]
) -> None:
    """Fill the rollouts of one group. Raises the first member's RolloutError; the others are broken off."""
    task = rollouts[0].task
    told = {"group": uuid.uuid4().hex, "group_size": len(rollouts)}
    for rollout in rollouts:
        rollout.task = replace(task, arguments={**task.arguments, **told})
    try:
        async with server.sessions_together(len(rollouts)) as sessions, asyncio.TaskGroup() as members:
            for session, rollout, start in zip(sessions, rollouts, starts, strict=True):
                members.create_task(_member(session, rules, policy, rollout, start))
    except ExceptionGroup as errors:
        failed, others = errors.split(RolloutError)
        if failed is None or others is not None:
            raise
        raise _first(failed) from None
    finally:
        for rollout in rollouts:
            rollout.task = task


async def _member(session: "EnvSession", rules: Rules, policy: Policy, rollout: Rollout, start: EpisodeStart) -> None:
    try:
        await Episode(rules, session, rollout).play(policy, start)
    except RolloutError as error:
        rollout.error_kind, rollout.error_message = error.kind, str(error)
        raise


def _first(errors: BaseExceptionGroup[RolloutError]) -> RolloutError:
    found: BaseException = errors
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, RolloutError)
    return found


def fail_together(rollouts: Sequence[Rollout], error: RolloutError) -> None:
    """Without one of its members a group has no rewards, not even those that were ready."""
    for rollout in rollouts:
        rollout.status = RolloutStatus.FAILED
        rollout.reward, rollout.columns = None, {}
        if rollout.error_kind is None:
            rollout.error_kind, rollout.error_message = error.kind, f"another member of its group failed: {error}"
