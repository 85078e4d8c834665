"""The job `exports.transfer`: advance the transfer report of an export until it waits or has finished.

Both sides play a pilot of every environment, then the tasks that the variance of the pilot requires, as ordinary
evaluations whose end wakes the report again. No worker waits for one. At the end, the export itself is queued.
"""

from __future__ import annotations

import math
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog
from sqlalchemy import text
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Export, TransferEvaluation
from backend.checkpoints.transfers import UNFINISHED, enqueue_export, evaluations_of, held_out_indexes
from backend.core.events import announce
from backend.core.session import transaction
from backend.detectors.scans import newest_scan
from backend.domain.checkpoints.transfer import (
    PairedFigure,
    TransferEnvironment,
    TransferReport,
    TransferStatus,
    canary_power,
    conclude,
    newcombe,
    plan_rest,
    variance_or_bound,
    warnings_of,
)
from backend.domain.environments.reward_bounds import reward_scale
from backend.domain.results.pass_at_k import REWARD
from backend.domain.results.power import detectable_difference, difference_variance, power_of, tasks_needed
from backend.domain.statistics import Proportion, estimate_mean, paired_difference, wilson
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import ExportStatus, Phase, Split
from backend.environments.tables import EnvironmentVersion
from backend.errors import AppError, InvalidInput
from backend.results.figures import EQUAL_REWARDS, cheat_rate, rule_of
from backend.results.rewards import FigureScope, read_rewards
from backend.results.scores import ComparedRun, TaskScores, merge, scores
from backend.runs.evaluations import start_evaluation
from backend.runs.schemas import EvaluationRequest
from backend.runs.service import request_stop
from backend.runs.tables import Run
from backend.web.audit import Requester
from workers.tasks.registry import JobContext

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_TRAPS = text("""
SELECT count(*) AS completed,
       count(*) FILTER (WHERE jsonb_path_exists(r.metrics, '$.keyvalue() ? (@.key starts with "honeypot")')) AS baited,
       count(*) FILTER (WHERE jsonb_path_exists(
           r.metrics, '$.keyvalue() ? (@.key starts with "honeypot" && @.value > 0)')) AS taken,
       count(*) FILTER (WHERE EXISTS (SELECT 1 FROM flags f WHERE f.rollout_id = r.id)) AS flagged
FROM rollouts r WHERE r.run_id = ANY(CAST(:runs AS uuid[])) AND r.status = 'completed'
""")

logger = structlog.get_logger(__name__)

Played = Mapping[tuple[uuid.UUID, bool], Sequence[TransferEvaluation]]
"""Evaluations by version and whether the reference plays."""


def run(context: JobContext) -> None:
    with transaction() as session:
        export = session.get(Export, uuid.UUID(context.arguments["export_id"]), with_for_update=True)
        report = export.transfer_report if export is not None else None
        if export is None or report is None or report.status.is_over or export.status not in UNFINISHED:
            return
        export.status, report.status = ExportStatus.RUNNING, TransferStatus.RUNNING
        if export.created_by is None:
            _end(session, export, report, TransferStatus.FAILED, "The person who started this export was removed.")
        else:
            _advance(session, export, report, Requester(export.created_by))


def give_up(session: Session, context: JobContext, reason: str) -> None:
    """Record that the report failed. The export is made without it."""
    export = session.get(Export, uuid.UUID(context.arguments["export_id"]), with_for_update=True)
    report = export.transfer_report if export is not None else None
    if export is None or report is None or report.status.is_over or export.status not in UNFINISHED:
        return
    if export.created_by is not None:
        _stop_evaluations(session, Requester(export.created_by), evaluations_of(session, export.id))
    _end(session, export, report, TransferStatus.FAILED, reason)


def _advance(session: Session, export: Export, report: TransferReport, requester: Requester) -> None:
    if report.started_at is None:
        report.started_at = datetime.now(UTC)
        for environment in report.environments:
            _start_pair(session, requester, export, report, environment, 0, environment.tasks, environment.canaries)
    is_late = report.is_late(datetime.now(UTC))
    is_ending = report.stop_requested or is_late
    evaluations = evaluations_of(session, export.id)
    if is_ending:
        _stop_evaluations(session, requester, evaluations)
    if _is_waiting(session, export, report, evaluations):
        return
    if not report.is_planned and not is_ending:
        played = _by_side(evaluations)
        for environment in report.environments:
            if environment.status.is_over:
                continue
            if (variance := _variance_of(session, report, environment, played)) is not None:
                environment.planned = tasks_needed(environment.detect, variance, report.target_power)
        plan_rest(report)
        for environment in report.environments:
            if environment.tasks > environment.pilot:
                pilot, tasks = environment.pilot, environment.tasks
                _start_pair(session, requester, export, report, environment, pilot, tasks, 0)
        if _is_waiting(session, export, report, evaluations_of(session, export.id)):
            return
    scans = [newest_scan(session, each.run_id) for each in evaluations if each.run_id]
    if any(scan is not None and not scan.is_finished for scan in scans):  # their end wakes the report
        _save(session, export, report, "transfer report: detectors scan the rollouts")
        return
    played = _by_side(evaluations_of(session, export.id))
    for environment in report.environments:
        if not environment.status.is_over:
            _summarize(session, report, environment, played, is_stopped=is_ending)
    report.warnings = warnings_of(report.environments)
    reason = f"Stopped after {report.max_minutes:,} minutes." if is_late else ""
    reason = "Stopped on request." if report.stop_requested else reason
    is_whole = all(each.status is TransferStatus.COMPLETED for each in report.environments)
    _end(session, export, report, TransferStatus.COMPLETED if is_whole else TransferStatus.PARTIAL, reason)
    logger.info("transfer report ended", export_id=str(export.id), warnings=report.warnings)


def _start_pair(
    session: Session,
    requester: Requester,
    export: Export,
    report: TransferReport,
    environment: TransferEnvironment,
    first: int,
    last: int,
    canaries: int,
) -> None:
    """Start the evaluations of both sides on the ordinary tasks `first` to `last`. A refusal ends this environment."""
    if environment.status.is_over:
        return
    training = session.get_one(Run, export.run_id)
    version = session.get_one(EnvironmentVersion, environment.version_id)
    ordinary, impossible = held_out_indexes(version.typed_manifest)
    plan = {
        "version_id": version.id,
        "split": Split.HELDOUT,
        "task_indexes": [*ordinary[first:last], *impossible[:canaries]],
        "temperature": TrainingConfiguration.of_run(training.configuration).heldout.temperature,
        "seed": training.seed,
    }
    environment.status = TransferStatus.RUNNING
    for side in (report.reference, report.exported):
        name = f"Transfer: {side.name} on {environment.title}"[:200]
        choice = {"policy_id": side.policy_id, "checkpoint_id": side.checkpoint_id, "name": name}
        try:
            evaluation = start_evaluation(session, requester, EvaluationRequest.model_validate(plan | choice))
        except AppError as error:
            reasons = error.fields.values() if isinstance(error, InvalidInput) else ()
            environment.status = TransferStatus.FAILED
            environment.reason = f"{side.name} cannot play it. {' '.join(reasons) or error.message}"
            started = [each for each in evaluations_of(session, export.id) if each.version_id == version.id]
            _stop_evaluations(session, requester, started)
            return
        is_reference = side is report.reference
        row = TransferEvaluation(export_id=export.id, version_id=version.id, run=evaluation, is_reference=is_reference)
        session.add(row)
        (environment.before_runs if is_reference else environment.after_runs).append(evaluation.id)
        session.flush()


def _stop_evaluations(session: Session, requester: Requester, evaluations: Sequence[TransferEvaluation]) -> None:
    for each in evaluations:
        if each.run is not None and not each.run.status.is_over and each.run.stop_requested_at is None:
            request_stop(session, requester, each.run)


def _is_waiting(
    session: Session, export: Export, report: TransferReport, evaluations: Sequence[TransferEvaluation]
) -> bool:
    """Whether evaluations are still in progress; their number is then shown."""
    ended = sum(each.run is None or each.run.status.is_over for each in evaluations)
    if ended == len(evaluations):
        return False
    part = "planned tasks" if report.is_planned else "pilots"
    phase = f"transfer report, {part}: {ended} of {len(evaluations)} evaluations played"
    _save(session, export, report, phase, done=ended, total=len(evaluations))
    return True


def _by_side(evaluations: Sequence[TransferEvaluation]) -> Played:
    sides: defaultdict[tuple[uuid.UUID, bool], list[TransferEvaluation]] = defaultdict(list)
    for each in evaluations:
        sides[each.version_id, each.is_reference].append(each)
    return sides


def _scores_of(
    session: Session, environment: TransferEnvironment, played: Played, *, is_reference: bool
) -> TaskScores | None:
    runs = [each.run for each in played.get((environment.version_id, is_reference), ()) if each.run is not None]
    return merge([scores(session, ComparedRun(each, None)) for each in runs]) if runs else None


def _variance_of(
    session: Session, report: TransferReport, environment: TransferEnvironment, played: Played
) -> float | None:
    """Variance of a task's difference, by the tasks that both sides completed; None for fewer than two."""
    before, after = (_scores_of(session, environment, played, is_reference=each) for each in (True, False))
    if before is None or after is None:
        return None
    shared = before.keys.shared_with([after.keys])
    variance = difference_variance(before.spreads(shared), after.spreads(shared))
    return None if variance is None else variance_or_bound(variance.of_task(1), len(shared), environment, report)


def _summarize(
    session: Session, report: TransferReport, environment: TransferEnvironment, played: Played, *, is_stopped: bool
) -> None:
    """Fill in the figures of an environment from the stored rollouts of both sides."""
    version = session.get_one(EnvironmentVersion, environment.version_id)
    before, after = (_scores_of(session, environment, played, is_reference=each) for each in (True, False))
    if before is not None and after is not None and (shared := before.keys.shared_with([after.keys])):
        of_side = before.side.run
        values = [each.rows(shared) for each in (before, after)]
        environment.compared = len(shared)
        environment.reward = _compare(*(each[:, -1] for each in values))
        if scale := reward_scale(version.typed_manifest, of_side.columns, of_side.weights):
            environment.normalized = environment.reward.normalized(scale)
        rule = rule_of(of_side, version.typed_manifest)
        place = -1 if rule.column == REWARD else of_side.columns.index(rule.column)
        environment.success_rule = rule.expression
        environment.success = _compare(*(each[:, place] >= rule.at_least - EQUAL_REWARDS for each in values))
        if (variance := _variance_of(session, report, environment, played)) is not None:
            environment.power = power_of(len(shared), environment.detect, variance)
            environment.detectable = detectable_difference(len(shared), variance, report.target_power)
            if environment.planned is None:  # it was stopped before
                environment.planned = tasks_needed(environment.detect, variance, report.target_power)
    _count_traps(session, report, environment, played)
    evaluations = [each for is_reference in (True, False) for each in played.get((version.id, is_reference), ())]
    runs = [each.run for each in evaluations if each.run is not None]
    missing = next((each.reason for each in runs if each.reason), None)
    if len(runs) < len(evaluations):
        missing = "An evaluation was deleted."
    elif missing is None and any(each.missing for each in runs):
        missing = "The others failed."
    conclude(environment, report, missing=missing or "", is_stopped=is_stopped)


def _compare(before: NDArray[np.generic], after: NDArray[np.generic]) -> PairedFigure:
    """Both means and the paired difference; by Student's t where the bootstrap has no limits."""
    one, two = before.astype(float), after.astype(float)
    means, difference = [estimate_mean(each) for each in (one, two)], paired_difference(one, two)
    if difference is None or not (math.isfinite(difference.low) and math.isfinite(difference.high)):
        difference = estimate_mean(two - one)
    return PairedFigure.model_validate({"before": means[0], "after": means[1], "difference": difference})


def _count_traps(session: Session, report: TransferReport, environment: TransferEnvironment, played: Played) -> None:
    """Count impossible tasks that passed, baits that were taken, and flagged rollouts, of both sides."""
    counts: dict[str, list[Proportion]] = {"canary": [], "honeypot": [], "flagged": []}
    version = session.get_one(EnvironmentVersion, environment.version_id)
    for is_reference in (True, False):
        runs = [each.run for each in played.get((version.id, is_reference), ()) if each.run is not None]
        traps = [read_rewards(session, each, FigureScope(each.id, Phase.CANARY)) for each in runs]
        rates = [
            cheat_rate(each, own, rule_of(each, version.typed_manifest)) for each, own in zip(runs, traps, strict=True)
        ]
        passed = [rate for rate in rates if rate is not None]
        row = session.execute(_TRAPS, {"runs": [each.id for each in runs]}).one()
        counts["canary"].append(wilson(sum(each.found for each in passed), sum(each.looked_at for each in passed)))
        counts["honeypot"].append(wilson(row.taken, row.baited))
        counts["flagged"].append(wilson(row.flagged, row.completed))
    for name, (before, after) in counts.items():
        if before.looked_at or after.looked_at:
            setattr(environment, name, newcombe(before, after))
    if environment.canary is not None:
        least = min(environment.canary.before.looked_at, environment.canary.after.looked_at)
        environment.canary_power = canary_power(least, report.detect)


def _end(session: Session, export: Export, report: TransferReport, status: TransferStatus, reason: str) -> None:
    """Store the report and queue the export."""
    report.status, report.reason, report.ended_at = status, reason, datetime.now(UTC)
    for environment in report.environments:
        if not environment.status.is_over:
            environment.status, environment.reason = TransferStatus.FAILED, reason
    export.status = ExportStatus.QUEUED
    _save(session, export, report, "waiting for a worker")
    enqueue_export(session, export)


def _save(
    session: Session, export: Export, report: TransferReport, phase: str, *, done: int = 0, total: int = 0
) -> None:
    export.transfer = report.model_dump(mode="json")
    export.progress = {"phase": phase, **({"done": done, "total": total} if total else {})}
    session.flush()
    announce(session, f"export:{export.id}")
