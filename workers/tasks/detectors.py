"""The jobs `judging.detect`, which scans a stored run with all detectors, `judging.follow` and `detectors.train`."""

import time
import uuid
from collections import Counter
from dataclasses import replace

import structlog

from backend.checkpoints.transfers import wake_waiting_transfers
from backend.core.events import announce, topic_of
from backend.core.session import transaction
from backend.detectors.scans import EARLY, PROGRESS, keep_progress
from backend.detectors.schemas import StartScan
from backend.domain.errors import RolloutError
from backend.review.judged_curves import choose_best
from workers.detectors.scanner import RunScanner
from workers.storage import detectors, learned_detectors
from workers.tasks.execute import run_async
from workers.tasks.registry import JobContext

PROGRESS_SECONDS = 0.5

logger = structlog.get_logger(__name__)


def run(context: JobContext) -> None:
    """Scan every stored step of a run in order, then the requested altered replies, then programs on unseen inputs.

    The learned detector is trained before if there are many new verdicts.
    Programs that a scan runs without a request are an extra: where none can be isolated, the scan says so and succeeds.
    """
    request = StartScan.of_job(context.arguments)
    learned_detectors.retrain_for_run(context.need_run())
    source = detectors.load_detector_input(context.need_run(), request.thresholds)
    is_early = bool(context.arguments.get(EARLY))
    scanner = RunScanner(source.context, source.settings)
    heldout = detectors.heldout_results_of(source.run_id) if source.context.has_steps else []
    total, done, written_at = detectors.count_rollouts(source), 0, 0.0
    note = ""
    flags: Counter[str] = Counter((context.arguments.get(PROGRESS) or {}).get("flags") or {})
    """Includes flags of earlier attempts."""

    def report(phase: str, *, is_over: bool = False) -> None:
        nonlocal written_at
        if not is_over and time.monotonic() - written_at < PROGRESS_SECONDS:
            return
        written_at = time.monotonic()
        progress = {"done": done, "total": total, "phase": phase, "flags": dict(flags), "over": is_over, "note": note}
        with transaction() as session:
            keep_progress(session, context.job_id, source.run_id, progress)

    phase = "stored rollouts"
    for step, rows in detectors.stored_steps(source):
        if is_early and len(rows) < detectors.BATCH:
            break
        drafts = scanner.scan(step, rows)
        if is_early:
            drafts = [draft for draft in drafts if draft.rollout_id is not None]
        while heldout and heldout[0].step <= step:
            scanner.add_heldout(heldout.pop(0))
        if not source.context.has_steps:
            drafts = [replace(draft, training_step=None) for draft in drafts]
        flags.update(detectors.record_flags(source.run_id, drafts))
        done += len(rows)
        report(phase)
    if request.altered:
        phase = "altered replies"
        drafts = run_async(detectors.scan_altered_replies(source, request.altered))
        flags.update(detectors.record_flags(source.run_id, drafts))
    runs = source.automatic_runs if request.runs is None else request.runs
    if runs and not is_early:

        def report_programs(ended: int, programs: int) -> None:
            report(f"program {ended:,} of {programs:,} on unseen inputs")

        try:
            drafts = run_async(detectors.scan_by_runs(source, runs, report_programs))
        except RolloutError as error:
            if request.runs is not None:
                raise
            note = f"Programs were not run on unseen inputs: {error}"[:500]
            logger.warning("programs were not run", reason=note)
        else:
            flags.update(detectors.record_flags(source.run_id, drafts))
    report(phase, is_over=True)
    with transaction() as session:
        wake_waiting_transfers(session, source.run_id)
    logger.info("scanned a run", steps=len(scanner.view.steps), flags=flags.total())


def follow(context: JobContext) -> None:
    """Verdicts on a training run change its best checkpoint."""
    with transaction() as session:
        choose_best(session, context.need_run())
        announce(session, topic_of("run", context.need_run()))


def train(context: JobContext) -> None:
    """Train the learned detector of an environment, as a person requested."""
    person = context.arguments["person"]
    learned_detectors.train_detector(uuid.UUID(context.arguments["environment"]), uuid.UUID(person) if person else None)
