"""The job `environments.check`: run the checks of a version, store their rollouts, write its certificate."""

import asyncio
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog
from sqlalchemy import delete, select
from sqlalchemy.orm import Session, undefer

from backend.core.session import transaction
from backend.domain.environments.certificate import CheckResult, certificate_status
from backend.domain.environments.manifest import Manifest
from backend.domain.review.judged_fixtures import JudgedFixture
from backend.domain.rollouts.rollout import Rollout
from backend.domain.text import plain_text
from backend.domain.vocabulary import RunStatus
from backend.environments.tables import Certificate, EnvironmentVersion
from backend.review.fixtures import judged_fixtures
from backend.runs.service import begin_run, finish_run
from backend.runs.tables import Run
from workers.environments.checks.base import Check
from workers.environments.checks.examine import CHECKS, does_not_start, examine
from workers.environments.checks.subject import TWIN_HASH_SEED, Reference, Subject
from workers.environments.client import HostRefused
from workers.policies.base import Policy
from workers.storage.env_host import open_env_host
from workers.storage.policies import load_policy
from workers.storage.recorder import RunRecorder
from workers.storage.rollout_writer import RolloutWriter
from workers.storage.rollouts import rollout_id
from workers.tasks.children import must_run_child
from workers.tasks.event_loops import run_async
from workers.tasks.nightly_checks import drifted, tell_of_breaking, tell_of_expiry, tell_of_weakening, weakened
from workers.tasks.registry import JobContext

LOCAL_MODULE = "workers.models.play"
"""Runs checks with a local model in a separate process."""

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Assignment:
    """All that is needed of the run, read once."""

    run_id: uuid.UUID
    version_id: uuid.UUID
    seed: int
    content_hash: str
    manifest: Manifest
    files: dict[str, str] = field(repr=False)
    judged: Sequence[JudgedFixture] = field(default=(), repr=False)
    """Episodes of the environment that people judged."""
    reference: str = ""
    """The name of the policy that the tasks are measured with too."""


def run(context: JobContext) -> None:
    """The job's body. Begun again after a crash it plays the same rollouts, which meet their first rows."""
    run_id = context.need_run()
    with transaction() as session:
        asked = asked_reference(session, run_id)
        policy = load_policy(session, asked) if asked else None
    if asked and policy is None:
        must_run_child(LOCAL_MODULE, [str(run_id)], run_id=run_id)
    else:
        check(run_id, policy)


def give_up(session: Session, context: JobContext, reason: str) -> None:
    """It broke off for good, without a certificate."""
    row = session.get(Run, context.run_id) if context.run_id else None
    if row is not None and not row.status.is_over:
        tell_of_breaking(session, row, plain_text(reason))


def asked_reference(session: Session, run_id: uuid.UUID) -> dict[str, Any]:
    """The policy that the tasks are to be measured with too; empty: none."""
    known: dict[str, Any] = session.get_one(Run, run_id).configuration.get("reference", {})
    return known


def check(run_id: uuid.UUID, policy: Policy | None) -> None:
    """Run the checks of the run's version. `policy` is the requested one and is closed at the end."""
    run_async(_certify(run_id, policy))


async def _certify(run_id: uuid.UUID, policy: Policy | None) -> None:
    try:
        assignment = await asyncio.to_thread(_take_up, run_id)
        if assignment is None:
            return
        recorder = RunRecorder(assignment.run_id)
        reference = Reference(assignment.reference, policy) if policy else None
        results = await _examine(assignment, recorder, reference)
    finally:
        if policy is not None:
            await policy.aclose()
    await asyncio.to_thread(_finish, assignment, results)
    recorder.log(f"certificate: {certificate_status(results)}")


async def _examine(assignment: _Assignment, recorder: RunRecorder, reference: Reference | None) -> list[CheckResult]:
    recorder.progress(phase="preparing the environment", done=0, total=len(CHECKS))
    async with open_env_host() as host:
        try:
            await host.prepare(assignment.content_hash, assignment.files)
        except HostRefused as error:
            return does_not_start(str(error))
        order = assignment.content_hash, assignment.manifest.proctor.resources
        async with host.lease(*order) as server, RolloutWriter(recorder) as writer:
            subject = Subject(
                assignment.manifest,
                server,
                files=assignment.files,
                judged=assignment.judged,
                seed=assignment.seed,
                on_rollout=writer.put,
                should_stop=recorder.should_stop,
                twin=lambda: host.lease(*order, hash_seed=TWIN_HASH_SEED),
                reference=reference,
            )
            return await _look(subject, assignment, recorder)


async def _look(subject: Subject, assignment: _Assignment, recorder: RunRecorder) -> list[CheckResult]:
    results: list[CheckResult] = []

    def begin(check: Check) -> None:
        tell(check.id, check.sentence)

    def record(result: CheckResult) -> None:
        results.append(result)
        recorder.log(f"{result.status} {result.check}: {result.evidence}")
        if len(results) == len(CHECKS):
            tell(result.check, result.evidence)

    def tell(check: str, message: str) -> None:
        """Show the current check, finished checks and queued ones on the page."""
        found = [_in_short(result) for result in results]
        to_come = [_to_come(check) for check in CHECKS[len(results) :]]
        more = {"results": found + to_come}
        recorder.progress(phase=check, done=len(results), total=len(CHECKS), message=message, more=more)

    def name(rollout: Rollout) -> uuid.UUID:
        return rollout_id(assignment.run_id, rollout)

    await examine(subject, on_begin=begin, on_result=record, rollout_id=name)
    return results


def _in_short(result: CheckResult) -> dict[str, Any]:
    """Without its figures: they come with the certificate."""
    return result.as_json() | {"details": {}, "evidence": plain_text(result.evidence)[:600]}


def _to_come(check: Check) -> dict[str, Any]:
    return {
        "check": check.id,
        "label": check.label,
        "sentence": check.sentence,
        "theme": check.theme,
        "status": None,
    }


def _take_up(run_id: uuid.UUID) -> _Assignment | None:
    """Begin the run. None if it has ended."""
    with transaction() as session:
        row = session.get_one(Run, run_id)
        if not begin_run(session, row):
            logger.info("the run is over already")
            return None
        version = session.get_one(EnvironmentVersion, row.version_id, options=[undefer(EnvironmentVersion.files)])
        return _Assignment(
            run_id=run_id,
            version_id=version.id,
            seed=row.seed,
            content_hash=version.content_hash,
            manifest=Manifest.model_validate(version.manifest),
            files=version.files,
            judged=judged_fixtures(session, version.environment_id),
            reference=asked_reference(session, run_id).get("name", ""),
        )


def _finish(assignment: _Assignment, results: Sequence[CheckResult]) -> None:
    """The certificate and the end of the run in one transaction; a stopped run certifies nothing."""
    with transaction() as session:
        row = session.get_one(Run, assignment.run_id)
        if len(results) < len(CHECKS):
            finish_run(session, row, RunStatus.STOPPED, reason="Stopped on request; there is no certificate.")
            return
        status = certificate_status(list(results))
        before, after = _results_before(session, assignment), [result.as_json() for result in results]
        drift, weaker = drifted(before, after), weakened(before, after)
        session.execute(delete(Certificate).where(Certificate.run_id == assignment.run_id))
        session.add(
            Certificate(
                version_id=assignment.version_id,
                run_id=assignment.run_id,
                status=status,
                results=after,
            )
        )
        counts = Counter(str(result.status) for result in results)
        seconds = sum(result.seconds for result in results)
        summary = {"certificate": str(status), **counts, "seconds": seconds, "drift": drift, "weaker": weaker}
        reason = f"Drift: {', '.join(drift)} held in the certificate before this one, and fails now." if drift else None
        finish_run(session, row, RunStatus.COMPLETED, summary, reason)
        if row.created_by is not None:  # the nightly job asks for nobody
            return
        if drift:
            tell_of_expiry(session, row, drift)
        elif weaker:
            tell_of_weakening(session, row, weaker)


def _results_before(session: Session, assignment: _Assignment) -> list[dict[str, Any]]:
    """Of the version's certificate before this one."""
    statement = select(Certificate.results).where(
        Certificate.version_id == assignment.version_id, Certificate.run_id != assignment.run_id
    )
    newest = statement.order_by(Certificate.created_at.desc(), Certificate.id.desc()).limit(1)
    return session.scalar(newest) or []
