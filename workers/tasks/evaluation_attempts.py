"""One attempt at an evaluation, or at a job's share of it: play, try failed ones once more, say how it ended."""

import asyncio
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.session import transaction
from backend.detectors.scans import scan_early
from backend.domain.policies.prices import Price
from backend.domain.rollouts.rollout import Rollout, TaskSpec
from backend.domain.vocabulary import Phase, RolloutStatus, RunStatus
from backend.runs.service import finish_run
from backend.runs.tables import Run
from workers.environments.client import EnvServer, HostRefused
from workers.policies.base import Policy
from workers.rollouts.engine import GroupPlan, TooManyFailures, play_groups
from workers.rollouts.stopping import unless_stopped
from workers.storage.detector_inputs import BATCH
from workers.storage.env_host import open_env_host
from workers.storage.recorder import RunRecorder
from workers.storage.rollout_writer import RolloutWriter
from workers.storage.run_summary import summarize
from workers.storage.server_count import servers_for
from workers.storage.work_claims import Share, ended_counts

MAX_REPORTED = 50
"""Different failures that the run's own log tells."""
MAX_AGAIN = 20_000
"""Failed rollouts that are tried once more at the end; a resume plays the others."""
AGAIN_AFTER_SECONDS = 1.0
"""Before that: what was away may be back."""
COUNT_SECONDS = 1.0
"""How often the rows of a shared run are counted for its progress."""

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Assignment:
    """All that is needed of the run, read once."""

    run_id: uuid.UUID
    seed: int
    share: Share
    content_hash: str
    files: dict[str, str] = field(repr=False)
    price: Price | None
    kept: int
    """Rollouts of the whole run that were completed when this began."""


@dataclass(slots=True)
class _Failure:
    """A rollout that failed, to be tried once more."""

    task: TaskSpec
    attempts: int
    cost: float | None


class Evaluation:
    """Plays an assignment and records how the run ended."""

    def __init__(self, assignment: Assignment, policy: Policy) -> None:
        self.assignment = assignment
        self.policy = policy
        self.plan = assignment.share.plan
        self.recorder = RunRecorder(assignment.run_id)
        self.total = self.plan.rollouts
        self.done = assignment.kept
        self.failures: Counter[str] = Counter()
        self.began = time.monotonic()
        self._failed: dict[tuple[int, int], _Failure] = {}
        self._failed_beyond = 0
        """Failed, and too many to be remembered."""
        self._limit = 0
        self._counted_at = 0.0
        self._next_look = max(BATCH, 2 * assignment.kept)

    async def play(self) -> RunStatus:
        try:
            status, reason = await self._outcome()
        finally:
            await self.policy.aclose()
        return await asyncio.to_thread(self._finish, status, reason)

    async def _outcome(self) -> tuple[RunStatus, str | None]:
        try:
            is_through = await unless_stopped(self._play(), self.recorder.should_stop)
        except HostRefused as error:
            return RunStatus.FAILED, f"The environment cannot be played: {error}"
        except TooManyFailures as error:
            return RunStatus.PAUSED, f"Paused because too much failed. {error}"
        return (RunStatus.COMPLETED, None) if is_through else (RunStatus.STOPPED, "Stopped on request.")

    async def _play(self) -> bool:
        assignment = self.assignment
        if assignment.kept:
            self.recorder.log(f"{assignment.kept} of {self.total} rollouts are there already and are kept")
        if self.done >= self.total:
            return True
        async with open_env_host() as host:
            self._tell("preparing the environment")
            await host.prepare(assignment.content_hash, assignment.files)
            resources = assignment.share.manifest.proctor.resources
            servers = await servers_for(host, resources, self.plan.concurrency)
            async with host.lease(assignment.content_hash, resources, servers=servers) as server:
                self.began = time.monotonic()
                self._tell("playing")
                await self._play_groups(server, assignment.share.groups())
                if self._failed:
                    await self._play_failed_again(server)
        return True

    async def _play_failed_again(self, server: EnvServer) -> None:
        """Once more, a single attempt each: an outage may have passed. They stay failed when it has not."""
        self.recorder.log(f"{len(self._failed)} rollouts failed; each is tried once more")
        await asyncio.sleep(AGAIN_AFTER_SECONDS)
        with suppress(TooManyFailures):
            await self._play_groups(
                server, list(_groups_of(self._failed, self.assignment.share.plan.group_size)), is_again=True
            )

    async def _play_groups(
        self, server: EnvServer, groups: Iterable[GroupPlan] | AsyncIterable[GroupPlan], *, is_again: bool = False
    ) -> None:
        async with RolloutWriter(self.recorder, after_batch=self._count) as writer:

            async def store(rollout: Rollout) -> None:
                self._add_earlier(rollout)
                await writer.put(rollout)

            await play_groups(
                groups,
                server=server,
                policy=self.policy,
                manifest=self.assignment.share.manifest,
                phase=Phase.EVALUATION,
                seed=self.assignment.seed,
                concurrency=self.plan.concurrency,
                on_rollout=store,
                max_attempts=1 if is_again else 1 + self.plan.retries,
                keep_cancelled=not is_again,  # the failed one that is stored tells more
                price=self.assignment.price,
                on_limit=self._limited,
            )

    def _add_earlier(self, rollout: Rollout) -> None:
        """What earlier attempts of this job took."""
        if earlier := self._failed.get((rollout.group, rollout.member)):
            rollout.attempts += earlier.attempts
            if earlier.cost is not None:
                rollout.cost = (rollout.cost or 0.0) + earlier.cost

    def _limited(self, limit: int) -> None:
        self._limit = limit

    def _count(self, batch: Sequence[Rollout]) -> None:
        """Called in the writer's thread after each stored batch."""
        for rollout in batch:
            key = (rollout.group, rollout.member)
            if rollout.status is RolloutStatus.CANCELLED:
                continue
            if key not in self._failed:
                self.done += 1
            if rollout.is_completed:
                self._failed.pop(key, None)
            else:
                self._remember(key, rollout)
                self._report(rollout)
        self._tell("playing")
        if self._next_look <= self.done < self.total:
            self._look()

    def _look(self) -> None:
        """The detectors need not wait for the end. Each look is at twice as many, so that all of them together cost
        no more than the one at the end."""
        self._next_look = 2 * self.done
        with transaction() as session:
            scan_early(session, self.assignment.run_id)

    def _remember(self, key: tuple[int, int], rollout: Rollout) -> None:
        if key in self._failed or len(self._failed) < MAX_AGAIN:
            self._failed[key] = _Failure(rollout.task, rollout.attempts, rollout.cost)
        else:
            self._failed_beyond += 1

    def _report(self, rollout: Rollout) -> None:
        """Every failure goes to the worker's log, each kind of message once to the run's."""
        why = f"{rollout.error_kind}: {rollout.error_message}"
        logger.warning("rollout failed", task=rollout.task.key, member=rollout.member, why=why)
        if len(self.failures) == MAX_REPORTED and why not in self.failures:
            return
        if why not in self.failures:
            self.recorder.log(f"task {rollout.task.key} failed after {rollout.attempts} attempts. {why}", "warning")
        self.failures[why] += 1

    def _tell(self, phase: str) -> None:
        failed = len(self._failed) + self._failed_beyond
        if self.assignment.share.is_shared:
            self._count_rows()
        self.recorder.progress(
            phase=phase,
            done=self.done,
            total=self.total,
            message=f"{failed} failed" if failed else "",
            concurrency=self._limit,
        )

    def _count_rows(self) -> None:
        """Others store rollouts of this run too."""
        now = time.monotonic()
        if now - self._counted_at >= COUNT_SECONDS:
            self._counted_at = now
            with transaction() as session:
                self.done = sum(ended_counts(session, self.assignment.run_id).values())

    def _finish(self, status: RunStatus, reason: str | None) -> RunStatus:
        seconds = time.monotonic() - self.began
        with transaction() as session:
            locked = select(Run).where(Run.id == self.assignment.run_id).with_for_update(key_share=True)
            row = session.scalars(locked).one()
            if row.status.is_over:  # another job of this run paused or ended it
                return row.status
            ended = ended_counts(session, row.id)
            settled, why = self._settle(session, row, status, reason, ended)
            played = sum(ended.values()) - self.assignment.kept
            if settled is not RunStatus.RUNNING:
                row.progress = {**row.progress, "done": sum(ended.values())}
                summary = summarize(session, row, seconds=seconds, played=played)
                finish_run(session, row, settled, summary, why)
        failed = ended.get(RolloutStatus.FAILED, 0)
        told = "this worker's share is played" if settled is RunStatus.RUNNING else str(settled)
        self.recorder.log(f"{told}: {played} rollouts in {seconds:.1f} s, {failed} failed. {why or ''}".strip())
        return settled

    def _settle(
        self, session: Session, row: Run, status: RunStatus, reason: str | None, ended: dict[RolloutStatus, int]
    ) -> tuple[RunStatus, str | None]:
        """How the run ends; `running` when it goes on without this job."""
        if status in {RunStatus.FAILED, RunStatus.PAUSED}:
            return status, reason
        if sum(ended.values()) >= self.total:
            if not ended.get(RolloutStatus.COMPLETED):
                most = self.failures.most_common(1)
                return RunStatus.FAILED, f"Every rollout failed. Most often: {most[0][0] if most else 'see its log'}"
            return RunStatus.COMPLETED, None
        if self.assignment.share.leaves_to_others(session):
            return RunStatus.RUNNING, None
        return RunStatus.STOPPED, reason or "Stopped on request."


def _groups_of(failed: dict[tuple[int, int], _Failure], size: int) -> Iterator[GroupPlan]:
    members: defaultdict[int, list[int]] = defaultdict(list)
    for ordinal, member in sorted(failed):
        members[ordinal].append(member)
    for ordinal, which in members.items():
        yield GroupPlan(failed[ordinal, which[0]].task, ordinal, tuple(which), size)
