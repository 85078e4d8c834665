"""Flags: drafts of the detectors become rows, inside training as over stored runs (the job `judging.detect`)."""

import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson
import structlog
from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from backend.core.events import REVIEW, announce, run_topic
from backend.core.session import transaction
from backend.detectors.scans import EARLY, PROGRESS, keep_progress
from backend.detectors.schemas import StartScan
from backend.detectors.tables import Flag
from backend.domain.detectors.flags import FlagDraft
from backend.domain.ids import new_id
from backend.domain.text import json_text, plain_text
from backend.review.queue import place
from backend.rollouts.tables import Rollout
from workers.detectors.scanner import RunScanner
from workers.storage.altered_replies import look_at_altered_replies
from workers.storage.detector_inputs import (
    BATCH,
    DetectorInput,
    count_rollouts,
    heldout_results_of,
    load_detector_input,
    stored_steps,
)
from workers.tasks.event_loops import run_async
from workers.tasks.registry import JobContext

PROGRESS_SECONDS = 0.5

logger = structlog.get_logger(__name__)


def run(context: JobContext) -> None:
    """Scan every stored step of a run in order, and the requested number of altered replies."""
    request = StartScan.of_job(context.arguments)
    judged = load_detector_input(context.need_run(), request.thresholds)
    is_early = bool(context.arguments.get(EARLY))
    scanner = RunScanner(judged.context, judged.settings)
    heldout = heldout_results_of(judged.run_id) if judged.context.has_steps else []
    told = _Told(context, judged)
    for step, rows in stored_steps(judged):
        if is_early and len(rows) < BATCH:
            break
        drafts = scanner.scan(step, rows)
        if is_early:
            drafts = [draft for draft in drafts if draft.rollout_id is not None]
        while heldout and heldout[0].step <= step:
            scanner.add_heldout(heldout.pop(0))
        if not judged.context.has_steps:
            drafts = [replace(draft, training_step=None) for draft in drafts]
        told.looked(len(rows), new_flags(judged.run_id, drafts))
    if request.altered:
        told.phase = "altered replies"
        told.looked(0, new_flags(judged.run_id, run_async(look_at_altered_replies(judged, request.altered))))
    told.over()
    logger.info("looked at a run", steps=len(scanner.view.steps), new_flags=told.flags.total())


class _Told:
    """The progress of a scan, including flags of earlier attempts."""

    def __init__(self, context: JobContext, judged: DetectorInput) -> None:
        self._job_id, self._run_id = context.job_id, judged.run_id
        before = context.arguments.get(PROGRESS) or {}
        self.flags: Counter[str] = Counter(before.get("flags") or {})
        self.phase = "stored rollouts"
        self._done, self._total = 0, count_rollouts(judged)
        self._written_at = 0.0

    def looked(self, rollouts: int, flags: Mapping[str, int]) -> None:
        self._done += rollouts
        self.flags.update(flags)
        if time.monotonic() - self._written_at >= PROGRESS_SECONDS:
            self._write()

    def over(self) -> None:
        self._write(over=True)

    def _write(self, *, over: bool = False) -> None:
        self._written_at = time.monotonic()
        progress = {"done": self._done, "total": self._total, "phase": self.phase, "flags": dict(self.flags)}
        with transaction() as session:
            keep_progress(session, self._job_id, self._run_id, {**progress, "over": over})


def record_flags(run_id: uuid.UUID, drafts: Sequence[FlagDraft]) -> int:
    """Store what was not flagged before; how many are new."""
    return new_flags(run_id, drafts).total()


def new_flags(run_id: uuid.UUID, drafts: Sequence[FlagDraft]) -> Counter[str]:
    """Store what was not flagged before; how many are new, by detector."""
    if not drafts:
        return Counter()
    with transaction() as session:
        return store_flags(session, run_id, drafts)


def store_flags(session: Session, run_id: uuid.UUID, drafts: Sequence[FlagDraft]) -> Counter[str]:
    """The same, in the caller's transaction."""
    stored = _stored_rollouts(session, drafts)
    rows = [_row(run_id, draft, stored) for draft in drafts]
    statement = insert(Flag).on_conflict_do_nothing(index_elements=["run_id", "detector", "key"])
    found = session.execute(statement.returning(Flag.id, Flag.detector), rows)
    new = {row.id: row.detector for row in found}
    place(session, {row["rollout_id"] or row["id"] for row in rows if row["id"] in new})
    if new:
        announce(session, run_topic(run_id), REVIEW)
    return Counter(new.values())


def resume_scanner(run_id: uuid.UUID, *, before_step: int) -> RunScanner:
    """A watch that has seen the stored training steps before this one, and says nothing about them again. The run's own
    thresholds are applied by the training process, because they may change between two steps."""
    judged = load_detector_input(run_id)
    scanner = RunScanner(judged.context, judged.of_environment)
    for step, rows in stored_steps(judged):
        if step < before_step:
            scanner.view.add(step, rows)
    for result in heldout_results_of(run_id):
        if result.step < before_step:
            scanner.add_heldout(result)
    scanner.skip_raised(_said(run_id, before_step))
    return scanner


def _said(run_id: uuid.UUID, before_step: int) -> list[tuple[str, str]]:
    statement = select(Flag.detector, Flag.key).where(Flag.run_id == run_id, Flag.training_step < before_step)
    with transaction() as session:
        return [(detector, key) for detector, key in session.execute(statement)]


def _stored_rollouts(session: Session, drafts: Sequence[FlagDraft]) -> set[uuid.UUID]:
    named = {draft.rollout_id for draft in drafts if draft.rollout_id}
    return set(session.scalars(select(Rollout.id).where(Rollout.id.in_(named)))) if named else set()


def _row(run_id: uuid.UUID, draft: FlagDraft, stored: set[uuid.UUID]) -> dict[str, Any]:
    """A flag about a rollout that is not stored is a flag about its run."""
    return {
        "id": new_id(),
        "run_id": run_id,
        "rollout_id": draft.rollout_id if draft.rollout_id in stored else None,
        "detector": draft.detector,
        "key": draft.key[:120],
        "severity": draft.severity,
        "score": draft.score,
        "sentence": plain_text(draft.sentence),
        "evidence": orjson.loads(json_text(draft.evidence)),
        "training_step": draft.training_step,
        "cluster": draft.cluster,
    }
