"""The head of every tab of a run: name, status, progress, tabs."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from fastapi import Request
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.core.queue import JUDGING_JOB
from backend.core.tables import Job
from backend.detectors.tables import Flag
from backend.domain.training.alarms import CLEARED
from backend.domain.vocabulary import UNFINISHED, RunKind
from backend.graders.tables import GraderRun
from backend.review.tables import VerdictRecord
from backend.runs import queries
from backend.runs.tables import Run
from backend.sweeps.tables import SweepTrial
from backend.training.alarms import OfferedAnswer, offered_answers
from backend.training.tables import Alarm
from backend.web.page import render_block

TEMPLATE = "runs/run.html"
HEAD_BLOCKS = (f"{TEMPLATE}#run_head", f"{TEMPLATE}#run_progress", f"{TEMPLATE}#run_tabs")
"""Blocks that a live stream updates above the tab's own part."""


@dataclass(frozen=True, slots=True)
class RunHeader:
    run: Run
    flag_count: int
    grader_count: int
    is_settled: bool
    """The run has ended and was scanned by detectors: nothing changes without a person."""
    has_verdicts: bool = False
    """Some of its rollouts were judged by a person."""
    source: Run | None = None
    """The run that this one repeats, rescores, replays or branches from."""
    alarms: Sequence[Alarm] = ()
    """Training runs: unanswered alarms whose condition lasts, newest first."""
    answers: Mapping[uuid.UUID, Sequence[OfferedAnswer]] = field(default_factory=dict)
    """Possible answers to each of them."""
    branches: Sequence[Run] = ()
    """Training runs that start from its checkpoints."""
    sweep_id: uuid.UUID | None = None
    """The sweep that started it."""
    trial: int | None = None
    """Its number in that sweep."""

    @property
    def origin(self) -> str:
        if self.run.branch_step is not None:
            is_moved = self.source is not None and self.source.version_id != self.run.version_id
            return f"branched{' onto another version' if is_moved else ''} at step {self.run.branch_step} off"
        return {RunKind.RESCORE: "re-scored from", RunKind.REPLAY: "replayed from"}.get(self.run.kind, "again after")

    @property
    def rollout_count(self) -> int:
        """While the run is active, this includes failed rollouts that were played again."""
        counted = self.run.summary.get("rollouts") if self.run.status.is_over else None
        return counted if isinstance(counted, int) else self.run.next_seq - 1

    @property
    def seconds(self) -> float | None:
        """From the start to the end or until now."""
        if self.run.started_at is None:
            return None
        return ((self.run.ended_at or datetime.now(UTC)) - self.run.started_at).total_seconds()


def head_blocks(request: Request, head: RunHeader) -> dict[str, str]:
    """The blocks that a live stream updates above the tab's own part."""
    names = [block.rpartition("#")[2] for block in HEAD_BLOCKS]
    return {name: render_block(request, TEMPLATE, name, {"head": head}) for name in names}


def run_header(session: Session, run: Run) -> RunHeader:
    flags = select(func.count(Flag.id)).where(Flag.run_id == run.id).scalar_subquery()
    graders = select(func.count(GraderRun.id)).where(GraderRun.run_id == run.id).scalar_subquery()
    scan = select(Job.id).where(Job.run_id == run.id, Job.name == JUDGING_JOB, Job.status.in_(UNFINISHED))
    given = (VerdictRecord.rollout_id.is_not(None), VerdictRecord.taken_back_at.is_(None))
    verdicts = select(VerdictRecord.id).where(VerdictRecord.run_id == run.id, *given)
    trial = select(SweepTrial.number).where(SweepTrial.run_id == run.id).limit(1)
    sweep = select(SweepTrial.sweep_id).where(SweepTrial.run_id == run.id).limit(1)
    state = select(
        *(flags, graders, scan.exists(), verdicts.exists()), sweep.scalar_subquery(), trial.scalar_subquery()
    )
    flag_count, grader_count, awaits_detectors, has_verdicts, sweep_id, number = session.execute(state).one()
    alarms: list[Alarm] = []
    if run.kind is RunKind.TRAINING:
        unanswered = select(Alarm).where(Alarm.run_id == run.id, Alarm.answer.is_(None)).order_by(Alarm.id.desc())
        alarms = [alarm for alarm in session.scalars(unanswered) if CLEARED not in alarm.evidence]
    return RunHeader(
        run,
        flag_count,
        grader_count,
        is_settled=run.status.is_over and not awaits_detectors,
        has_verdicts=has_verdicts,
        source=session.get(Run, run.source_run_id) if run.source_run_id else None,
        alarms=alarms,
        answers=offered_answers(session, run, alarms),
        branches=queries.branches_of(session, run.id) if run.kind is RunKind.TRAINING else (),
        sweep_id=sweep_id,
        trial=number,
    )
