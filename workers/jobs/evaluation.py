"""The job `evaluations.run`: play what is missing of a plan, store it, sum it up.

It goes on where the rows stand: completed rollouts are kept, failed ones are played again, nothing is doubled.
"""

import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload, undefer

from backend.db.models import EnvironmentVersion, Group, Run
from backend.db.models import Rollout as RolloutRow
from backend.db.session import transaction
from backend.domain.manifest import Manifest
from backend.domain.plans import EvaluationPlan
from backend.domain.rollouts import Rollout, task_of
from backend.domain.vocabulary import Phase, PolicyKind, RolloutStatus, RunStatus
from backend.errors import Conflict
from backend.evaluations.secrets import secret_of
from backend.evaluations.service import begin_run, finish_run
from workers.environments.client import HostRefused
from workers.jobs.children import must_run_child
from workers.jobs.env_host import open_env_host
from workers.jobs.loops import run_async
from workers.jobs.recording import RunRecorder
from workers.jobs.registry import JobContext
from workers.jobs.summary import summarize
from workers.jobs.writer import RolloutWriter
from workers.policies import make_policy
from workers.policies.base import Policy
from workers.rollouts.engine import GroupPlan, TooManyFailures, play_groups
from workers.rollouts.stopping import unless_stopped

LOCAL_MODULE = "workers.models.evaluate"
"""Runs `evaluate` with a local model in a process of its own."""

MAX_REPORTED = 50
"""Different failures that the run's own log tells."""

logger = structlog.get_logger(__name__)


class PolicyIsGone(Conflict):
    """The policy was deleted."""


def run(context: JobContext) -> None:
    """The job's body."""
    run_id = context.need_run()
    policy = _make_policy(run_id)
    if policy is None:
        must_run_child(LOCAL_MODULE, [str(run_id)], run_id=run_id)
    else:
        evaluate(run_id, policy)


def evaluate(run_id: uuid.UUID, policy: Policy) -> RunStatus:
    """Play the evaluation of a run with a policy, which is closed at the end. Needs no running event loop."""
    assignment = _take_up(run_id)
    if assignment is None:
        logger.info("the run is over already")
        return run_async(_close(policy))
    return run_async(_Evaluation(assignment, policy).play())


async def _close(policy: Policy) -> RunStatus:
    await policy.aclose()
    return RunStatus.COMPLETED


@dataclass(frozen=True, slots=True)
class _Assignment:
    """All that is needed of the run, read once."""

    run_id: uuid.UUID
    seed: int
    plan: EvaluationPlan
    manifest: Manifest
    """With the plan's limit of tokens a turn."""
    content_hash: str
    files: dict[str, str]
    finished: dict[int, set[int]] = field(repr=False)
    """Members of each group that are completed."""

    @property
    def kept(self) -> int:
        return sum(len(members) for members in self.finished.values())

    def groups(self) -> Iterator[GroupPlan]:
        """What is still to be played."""
        for ordinal, index in enumerate(self.plan.task_indexes):
            finished = self.finished.get(ordinal, ())
            members = tuple(member for member in range(self.plan.group_size) if member not in finished)
            if members:
                yield GroupPlan(task_of(self.manifest, self.plan.split, index), ordinal, members)


class _Evaluation:
    """One attempt at it."""

    def __init__(self, assignment: _Assignment, policy: Policy) -> None:
        self.assignment = assignment
        self.policy = policy
        self.recorder = RunRecorder(assignment.run_id)
        self.total = assignment.plan.rollouts
        self.done = assignment.kept
        self.failed = 0
        self.failures: Counter[str] = Counter()
        self.began = time.monotonic()

    async def play(self) -> RunStatus:
        try:
            status, reason = await self._outcome()
        finally:
            await self.policy.aclose()
        return self._finish(status, reason)

    async def _outcome(self) -> tuple[RunStatus, str | None]:
        try:
            await unless_stopped(self._play(), self.recorder.should_stop)
        except HostRefused as error:
            return RunStatus.FAILED, f"The environment cannot be played: {error}"
        except TooManyFailures as error:
            return RunStatus.PAUSED, f"Paused because too much failed. {error}"
        if self.done >= self.total:
            if self.failed == self.total:
                [(why, _)] = self.failures.most_common(1)
                return RunStatus.FAILED, f"Every rollout failed. Most often: {why}"
            return RunStatus.COMPLETED, None
        return RunStatus.STOPPED, "Stopped on request."

    async def _play(self) -> None:
        assignment = self.assignment
        plan, manifest = assignment.plan, assignment.manifest
        if assignment.kept:
            self.recorder.log(f"{assignment.kept} of {self.total} rollouts are there already and are kept")
        if self.done >= self.total:
            return
        async with open_env_host() as host:
            self._tell("preparing the environment")
            await host.prepare(assignment.content_hash, assignment.files)
            async with (
                host.lease(assignment.content_hash, manifest.proctor.resources) as server,
                RolloutWriter(self.recorder, after_batch=self._count) as writer,
            ):
                self.began = time.monotonic()
                self._tell("playing")
                await play_groups(
                    assignment.groups(),
                    server=server,
                    policy=self.policy,
                    manifest=manifest,
                    phase=Phase.EVALUATION,
                    seed=assignment.seed,
                    concurrency=plan.concurrency,
                    on_rollout=writer.put,
                )

    def _count(self, batch: Sequence[Rollout]) -> None:
        """Called in the writer's thread after each stored batch."""
        self.done += len(batch)
        for rollout in batch:
            if not rollout.is_completed:
                self.failed += 1
                self._report(rollout)
        self._tell("playing")

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
        message = f"{self.failed} failed" if self.failed else ""
        self.recorder.progress(phase=phase, done=self.done, total=self.total, message=message)

    def _finish(self, status: RunStatus, reason: str | None) -> RunStatus:
        seconds = time.monotonic() - self.began
        played = self.done - self.assignment.kept
        with transaction() as session:
            row = session.get_one(Run, self.assignment.run_id)
            summary = summarize(session, row, seconds=seconds, played=played)
            finish_run(session, row, status, summary, reason)
        self.recorder.log(
            f"{status}: {played} rollouts in {seconds:.1f} s, {self.failed} failed. {reason or ''}".strip()
        )
        return status


def _make_policy(run_id: uuid.UUID) -> Policy | None:
    """The run's policy; None for a local one, which needs a process with torch."""
    with transaction() as session:
        row = session.get_one(Run, run_id, options=[joinedload(Run.policy)])
        policy = row.policy
        if policy is None or policy.deleted_at is not None:
            raise PolicyIsGone(f"The policy {policy.name if policy else ''} was deleted; start with another one.")
        if policy.kind is PolicyKind.LOCAL:
            return None
        sampling = EvaluationPlan.model_validate(row.configuration).sampling
        return make_policy(policy.kind, policy.configuration, secret_of(policy), sampling)


def _take_up(run_id: uuid.UUID) -> _Assignment | None:
    """Begin the run and read what is to be done. None when it is over."""
    with transaction() as session:
        row = session.get_one(Run, run_id)
        if not begin_run(session, row):
            return None
        version = session.get_one(EnvironmentVersion, row.version_id, options=[undefer(EnvironmentVersion.files)])
        plan = EvaluationPlan.model_validate(row.configuration)
        manifest = _limited(Manifest.model_validate(version.manifest), plan.sampling.max_tokens_per_turn)
        return _Assignment(
            run_id=run_id,
            seed=row.seed,
            plan=plan,
            manifest=manifest,
            content_hash=version.content_hash,
            files=version.files,
            finished=_finished(session, run_id),
        )


def _limited(manifest: Manifest, max_tokens: int) -> Manifest:
    episode = manifest.proctor.episode.model_copy(update={"max_tokens_per_turn": max_tokens})
    return manifest.model_copy(update={"proctor": manifest.proctor.model_copy(update={"episode": episode})})


def _finished(session: Session, run_id: uuid.UUID) -> dict[int, set[int]]:
    found = session.execute(
        select(Group.ordinal, RolloutRow.member)
        .join(Group, Group.id == RolloutRow.group_id)
        .where(
            RolloutRow.run_id == run_id,
            RolloutRow.phase == Phase.EVALUATION,
            RolloutRow.status == RolloutStatus.COMPLETED,
        )
    )
    members: defaultdict[int, set[int]] = defaultdict(set)
    for ordinal, member in found:
        members[ordinal].add(member)
    return dict(members)
