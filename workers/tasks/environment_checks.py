"""The job `environments.check`: run the checks of a version, store their rollouts, write its certificate."""

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version as package_version

import structlog
from sqlalchemy import delete, select
from sqlalchemy.orm import Session, undefer

from backend.core.session import transaction
from backend.domain.environments.certificate import CheckResult, certificate_status
from backend.domain.environments.manifest import Manifest
from backend.domain.text import plain_text
from backend.domain.vocabulary import RunStatus
from backend.environments.scaffold import without_generated
from backend.environments.tables import Certificate, EnvironmentVersion
from backend.review.fixtures import judged_fixtures
from backend.runs.service import begin_run, finish_run
from backend.runs.tables import Run
from workers.environments.checks.registry import CHECKS, does_not_start, run_checks
from workers.environments.checks.subject import SECOND_HASH_SEED, CheckSubject, Reference
from workers.environments.client import HostRefused
from workers.policies.base import Policy
from workers.storage.env_host import open_env_host
from workers.storage.policies import load_policy
from workers.storage.recorder import RolloutWriter, RunRecorder
from workers.storage.rollouts import rollout_id
from workers.tasks.children import must_run_child
from workers.tasks.execute import run_async
from workers.tasks.nightly_checks import announce_drift, announce_failed_nights, compare_results
from workers.tasks.registry import JobContext

LOCAL_MODULE = "workers.models.play"
"""Runs checks with a local model in a separate process."""

logger = structlog.get_logger(__name__)


def run(context: JobContext) -> None:
    """Run the job. After a crash it plays the same rollouts again, which replace their first rows."""
    run_id = context.need_run()
    with transaction() as session:
        reference = session.get_one(Run, run_id).configuration.get("reference", {})  # measures the tasks
        policy = load_policy(session, reference) if reference else None
    if reference and policy is None:
        must_run_child(LOCAL_MODULE, [str(run_id)], run_id=run_id)
    else:
        check(run_id, policy)


def give_up(session: Session, context: JobContext, reason: str) -> None:
    """The job failed for good, without a certificate."""
    row = session.get(Run, context.run_id) if context.run_id else None
    if row is not None and not row.status.is_over:
        announce_failed_nights(session, row, plain_text(reason))


def check(run_id: uuid.UUID, policy: Policy | None) -> None:
    """Run the checks of the run's version. `policy` measures the tasks and is closed at the end."""
    with transaction() as session:
        row = session.get_one(Run, run_id)
        has_begun = begin_run(session, row)
        version = session.get_one(EnvironmentVersion, row.version_id, options=[undefer(EnvironmentVersion.files)])
        judged = judged_fixtures(session, version.environment_id)
        reference = Reference(row.configuration.get("reference", {}).get("name", ""), policy) if policy else None
    manifest = Manifest.model_validate(version.manifest)
    recorder = RunRecorder(run_id)

    async def certify() -> Sequence[CheckResult]:
        recorder.progress(phase="preparing the environment", done=0, total=len(CHECKS))
        async with open_env_host() as host:
            try:
                await host.prepare(version.content_hash, version.files)
            except HostRefused as error:
                return does_not_start(str(error))
            package = version.content_hash, manifest.proctor.resources
            async with host.lease(*package) as server, RolloutWriter(recorder) as writer:
                subject = CheckSubject(
                    manifest,
                    server,
                    files=version.files,
                    generated=version.files.keys() - without_generated(version.files).keys(),
                    judged=judged,
                    seed=row.seed,
                    on_rollout=writer.put,
                    should_stop=recorder.should_stop,
                    second_process=lambda: host.lease(*package, hash_seed=SECOND_HASH_SEED),
                    branch_recorder=lambda: host.lease(*package, branches=True),
                    reference=reference,
                )
                return await _run_checks(subject, recorder)

    if not has_begun:
        logger.info("the run is over already")
        if policy is not None:
            run_async(policy.aclose())
        return
    results = run_async(certify(), closing=policy)
    _finish(run_id, version.id, results)
    recorder.log(f"certificate: {certificate_status(results)}")


async def _run_checks(subject: CheckSubject, recorder: RunRecorder) -> list[CheckResult]:
    """Run all checks; show the current one, finished ones and queued ones on the run's page."""
    results: list[CheckResult] = []

    def show(check_id: str, message: str) -> None:
        finished = [  # figures come with the certificate
            asdict(result) | {"details": {}, "evidence": plain_text(result.evidence)[:600]} for result in results
        ]
        queued = [
            {"check": each.id, "label": each.label, "sentence": each.sentence, "theme": each.theme, "status": None}
            for each in CHECKS[len(results) :]
        ]
        more = {"results": finished + queued}
        recorder.progress(phase=check_id, done=len(results), total=len(CHECKS), message=message, more=more)

    def on_result(result: CheckResult) -> None:
        results.append(result)
        recorder.log(f"{result.status} {result.check}: {result.evidence}")
        if len(results) == len(CHECKS):
            show(result.check, result.evidence)

    return await run_checks(
        subject,
        on_begin=lambda check: show(check.id, check.sentence),
        on_result=on_result,
        rollout_id=lambda rollout: rollout_id(recorder.run_id, rollout),
    )


def _finish(run_id: uuid.UUID, version_id: uuid.UUID, results: Sequence[CheckResult]) -> None:
    """Store the certificate and end the run in one transaction. A stopped run has no certificate."""
    with transaction() as session:
        row = session.get_one(Run, run_id)
        if len(results) < len(CHECKS):
            finish_run(session, row, RunStatus.STOPPED, reason="Stopped on request; there is no certificate.")
            return
        status, after = certificate_status(results), [asdict(result) for result in results]
        previous = (
            select(Certificate.results)
            .where(Certificate.version_id == version_id, Certificate.run_id != run_id)
            .order_by(Certificate.created_at.desc(), Certificate.id.desc())
        )
        before = session.scalar(previous.limit(1)) or []
        drift, weaker = compare_results(before, after)
        session.execute(delete(Certificate).where(Certificate.run_id == run_id))
        session.add(Certificate(version_id=version_id, run_id=run_id, status=status, results=after))
        counts = Counter(str(result.status) for result in results)
        seconds = sum(result.seconds for result in results)
        summary = {
            "certificate": str(status),
            **counts,
            "seconds": seconds,
            "drift": drift,
            "weaker": weaker,
            "proctor": package_version("proctor"),
        }
        reason = f"Drift: {', '.join(drift)} held in the previous certificate and fails now." if drift else None
        finish_run(session, row, RunStatus.COMPLETED, summary, reason)
        if row.created_by is None and (drift or weaker):  # a nightly check
            announce_drift(session, row, drift, weaker)
