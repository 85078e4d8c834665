"""The job `evaluations.run`: play the missing rollouts of a plan, store and summarize them.

It continues from the stored rows: completed rollouts are kept, failed and canceled ones are played again, nothing is
doubled. Several jobs can share one run; the last one to end summarizes it.
"""

import asyncio
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session, undefer

from backend.core.session import transaction
from backend.detectors.scans import scan_early
from backend.domain.environments.manifest import Manifest
from backend.domain.policies.prices import Price
from backend.domain.rollouts.rollout import Rollout, TaskSpec
from backend.domain.runs.plans import EvaluationPlan
from backend.domain.vocabulary import Phase, RolloutStatus, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.results.regressions import announce_regression
from backend.runs.service import begin_run, finish_run
from backend.runs.tables import Run
from workers.environments.client import EnvServer, HostRefused
from workers.policies.base import Policy
from workers.rollouts.engine import GroupPlan, RolloutPool, TooManyFailures
from workers.rollouts.limits import unless_stopped
from workers.rollouts.seats import SeatAssignment, SeatPolicy, own_seat
from workers.storage.detectors import BATCH
from workers.storage.env_host import open_env_host, servers_for
from workers.storage.policies import load_policy
from workers.storage.recorder import RolloutWriter, RunRecorder
from workers.storage.runs import WorkClaim, ended_counts, summarize
from workers.tasks.children import must_run_child
from workers.tasks.execute import run_async
from workers.tasks.registry import JobContext

LOCAL_MODULE = "workers.models.play"
"""Runs `evaluate` with a local model in a separate process."""
MAX_REPORTED = 50
"""Different failures in the run's own log."""
MAX_REPEATED = 20_000
"""Failed rollouts that are tried again at the end. A resumed run plays the others."""
REPEAT_AFTER_SECONDS = 1.0
"""Before failed rollouts are tried again: an outage may have passed."""
COUNT_SECONDS = 1.0
"""How often the rows of a shared run are counted for its progress."""

logger = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Failure:
    """A failed rollout, to be tried again."""

    task: TaskSpec
    attempts: int
    cost: float | None


def run(context: JobContext) -> None:
    run_id = context.need_run()
    with transaction() as session:
        row = session.get_one(Run, run_id)
        plan = EvaluationPlan.model_validate(row.configuration)
        policy = load_policy(session, {"policy_id": row.policy_id}, plan.sampling, plan.workers)
        opponent = load_opponent(session, plan)
    if policy is None or (plan.opponent is not None and opponent is None):
        must_run_child(LOCAL_MODULE, [str(run_id), str(context.job_id)], run_id=run_id)
    else:
        evaluate(run_id, policy, context.job_id, opponent)


def load_opponent(session: Session, plan: EvaluationPlan) -> Policy | None:
    """Make the plan's opponent; None if there is none, or if it is local and needs a process with torch."""
    if plan.opponent is None:
        return None
    return load_policy(session, plan.opponent.model_dump(), plan.sampling, plan.workers)


def evaluate(
    run_id: uuid.UUID, policy: Policy, job_id: uuid.UUID | None = None, opponent: Policy | None = None
) -> RunStatus:
    """Play a run's evaluation with a policy, which is closed at the end. Needs no running event loop.

    `opponent` takes the other seats of an environment that has seats, and is closed, too.

    Returns how the run ended; `running` if other jobs still play their part.
    """
    attempt = EvaluationAttempt(run_id, policy, job_id, opponent)
    if not attempt.has_begun:
        run_async(policy.aclose())
        if opponent is not None:
            run_async(opponent.aclose())
        logger.info("the run has ended already")
        return RunStatus.COMPLETED
    try:
        is_through = run_async(unless_stopped(attempt.play(), attempt.recorder.should_stop), closing=policy)
    except HostRefused as error:
        return attempt.finish(RunStatus.FAILED, f"The environment cannot be played: {error}")
    except TooManyFailures as error:
        return attempt.finish(RunStatus.PAUSED, f"Paused after too many failures. {error}")
    return attempt.finish(RunStatus.COMPLETED if is_through else RunStatus.STOPPED, None)


class EvaluationAttempt:
    """One attempt at an evaluation, or at a job's part of it: play, try failures again, record how it ended."""

    def __init__(
        self, run_id: uuid.UUID, policy: Policy, job_id: uuid.UUID | None, opponent: Policy | None = None
    ) -> None:
        """Begin the run and read the remaining plan."""
        self.run_id, self.policy, self.opponent = run_id, policy, opponent
        with transaction() as session:
            row = session.get_one(Run, run_id)
            self.has_begun = begin_run(session, row)
            self.seed = row.seed
            self.plan = plan = EvaluationPlan.model_validate(row.configuration)
            self.version = session.get_one(
                EnvironmentVersion, row.version_id, options=[undefer(EnvironmentVersion.files)]
            )
            price = (row.configuration.get("policy") or {}).get("price")
            self.price = Price.model_validate(price) if price else None
            self.done = self.kept = ended_counts(session, run_id).get(RolloutStatus.COMPLETED, 0)
            """`kept`: rollouts of the whole run that were completed when this attempt began."""
        # The plan's token limit and context replace the manifest's.
        manifest = Manifest.model_validate(self.version.manifest)
        manifest = manifest.with_reply_limit(plan.sampling.max_tokens_per_turn)
        proctor = manifest.proctor
        agent = proctor.agent.model_copy(update={"context": plan.context or proctor.agent.context})
        self.manifest = manifest.model_copy(update={"proctor": proctor.model_copy(update={"agent": agent})})
        self.claim = WorkClaim(run_id, plan, self.manifest, job_id)
        self.recorder = RunRecorder(run_id)
        self.failures: Counter[str] = Counter()
        self.start = time.monotonic()
        self._failed: dict[tuple[int, int], _Failure] = {}
        self._forgotten = 0
        """Failed rollouts beyond `MAX_REPEATED`."""
        self._limit = 0
        self._counted_at = 0.0
        self._next_scan = max(BATCH, 2 * self.kept)

    def _assign_seats(self, rollout: Rollout) -> SeatAssignment:
        """The opponent takes every seat that the rollout's policy does not take."""
        seats, chosen = self.manifest.proctor.seats, self.plan.opponent
        assert seats is not None
        seat = own_seat(self.manifest, rollout)
        if self.opponent is None or chosen is None:
            return SeatAssignment(seat)
        taken = SeatPolicy(chosen.name, self.opponent, Price.model_validate(chosen.price) if chosen.price else None)
        return SeatAssignment(seat, {name: taken for name in seats.names if name != seat})

    async def play(self) -> bool:
        try:
            return await self._play_all()
        finally:
            if self.opponent is not None:
                await self.opponent.aclose()

    async def _play_all(self) -> bool:
        if self.kept:
            self.recorder.log(f"{self.kept} of {self.plan.rollouts} rollouts are stored already and are kept")
        if self.done >= self.plan.rollouts:
            return True
        async with open_env_host() as host:
            self._report_progress("preparing the environment")
            await host.prepare(self.version.content_hash, self.version.files)
            resources = self.manifest.proctor.resources
            servers = await servers_for(host, resources, self.plan.concurrency)
            async with host.lease(self.version.content_hash, resources, servers=servers) as server:
                self.start = time.monotonic()
                self._report_progress("playing")
                await self._play_groups(server, self.claim.missing_groups())
                if self._failed:
                    self.recorder.log(f"{len(self._failed)} rollouts failed; each is tried once more")
                    await asyncio.sleep(REPEAT_AFTER_SECONDS)
                    members: defaultdict[int, list[int]] = defaultdict(list)
                    for ordinal, member in sorted(self._failed):
                        members[ordinal].append(member)
                    failed = [
                        GroupPlan(self._failed[ordinal, which[0]].task, ordinal, tuple(which), self.plan.group_size)
                        for ordinal, which in members.items()
                    ]
                    with suppress(TooManyFailures):  # then they stay failed
                        await self._play_groups(server, failed, is_repeated=True)
        return True

    async def _play_groups(
        self, server: EnvServer, groups: Iterable[GroupPlan] | AsyncIterable[GroupPlan], *, is_repeated: bool = False
    ) -> None:
        async with RolloutWriter(self.recorder, after_batch=self._count) as writer:

            async def store(rollout: Rollout) -> None:
                if earlier := self._failed.get((rollout.group, rollout.member)):
                    rollout.attempts += earlier.attempts
                    if earlier.cost is not None:
                        rollout.cost = (rollout.cost or 0.0) + earlier.cost
                await writer.put(rollout)

            await RolloutPool(
                groups,
                server=server,
                policy=self.policy,
                manifest=self.manifest,
                phase=Phase.EVALUATION,
                seed=self.seed,
                concurrency=self.plan.concurrency,
                on_rollout=store,
                max_attempts=1 if is_repeated else 1 + self.plan.retries,
                keep_cancelled=not is_repeated,  # the stored failure is more informative
                price=self.price,
                seats=self._assign_seats,
                on_limit=partial(setattr, self, "_limit"),
            ).play()

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
                continue
            if key in self._failed or len(self._failed) < MAX_REPEATED:
                self._failed[key] = _Failure(rollout.task, rollout.attempts, rollout.cost)
            else:
                self._forgotten += 1
            # Every failure goes to the worker's log, each kind of message once to the run's.
            why = f"{rollout.error_kind}: {rollout.error_message}"
            logger.warning("rollout failed", task=rollout.task.key, member=rollout.member, why=why)
            if why in self.failures or len(self.failures) < MAX_REPORTED:
                if why not in self.failures:
                    line = f"task {rollout.task.key} failed after {rollout.attempts} attempts. {why}"
                    self.recorder.log(line, "warning")
                self.failures[why] += 1
        self._report_progress("playing")
        if self._next_scan <= self.done < self.plan.rollouts:
            # Detectors start before the end. Each scan covers twice as many rollouts as the one before, so that all of
            # them together cost no more than the last one.
            self._next_scan = 2 * self.done
            with transaction() as session:
                scan_early(session, self.run_id)

    def _report_progress(self, phase: str) -> None:
        failed = len(self._failed) + self._forgotten
        now = time.monotonic()
        if self.claim.job_id is not None and now - self._counted_at >= COUNT_SECONDS:  # others store rollouts too
            self._counted_at = now
            with transaction() as session:
                self.done = sum(ended_counts(session, self.run_id).values())
        self.recorder.progress(
            phase=phase,
            done=self.done,
            total=self.plan.rollouts,
            message=f"{failed} failed" if failed else "",
            concurrency=self._limit,
        )

    def finish(self, status: RunStatus, reason: str | None) -> RunStatus:
        """End the run, unless other jobs continue it, and return its status."""
        seconds = time.monotonic() - self.start
        with transaction() as session:
            locked = select(Run).where(Run.id == self.run_id).with_for_update(key_share=True)
            row = session.scalars(locked).one()
            if row.status.is_over:  # another job of this run paused or ended it
                return row.status
            ended = ended_counts(session, row.id)
            if status not in {RunStatus.FAILED, RunStatus.PAUSED}:
                if sum(ended.values()) >= self.plan.rollouts and ended.get(RolloutStatus.COMPLETED):
                    status, reason = RunStatus.COMPLETED, None
                elif sum(ended.values()) >= self.plan.rollouts:
                    [most] = self.failures.most_common(1) or [("see the log", 0)]
                    status, reason = RunStatus.FAILED, f"Every rollout failed. Most common error: {most[0]}"
                elif self.claim.others_continue(session):
                    status, reason = RunStatus.RUNNING, None
                else:
                    status, reason = RunStatus.STOPPED, reason or "Stopped on request."
            played = sum(ended.values()) - self.kept
            if status is not RunStatus.RUNNING:
                row.progress = {**row.progress, "done": sum(ended.values())}
                finish_run(session, row, status, summarize(session, row, seconds=seconds, played=played), reason)
        if status is RunStatus.COMPLETED:
            with transaction() as session:
                announce_regression(session, session.get_one(Run, self.run_id))
        outcome = "this worker's part is played" if status is RunStatus.RUNNING else str(status)
        failed = ended.get(RolloutStatus.FAILED, 0)
        self.recorder.log(f"{outcome}: {played} rollouts in {seconds:.1f} s, {failed} failed. {reason or ''}".strip())
        return status
