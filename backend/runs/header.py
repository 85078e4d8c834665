"""The head of every tab of a run: name, status, progress, tabs."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from fastapi import Request
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role, RunKind
from backend.runs import queries
from backend.runs.rerun import source_of
from backend.runs.tables import Run
from backend.training.alarms import OfferedAnswer, offered_answers
from backend.training.tables import Alarm
from backend.web.page import render_block

TEMPLATE = "runs/run.html"
COMPARABLE = frozenset({RunKind.EVALUATION, RunKind.TRAINING, RunKind.RESCORE, RunKind.REPLAY})


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
    """Training runs: open alarms."""
    answers: Mapping[uuid.UUID, Sequence[OfferedAnswer]] = field(default_factory=dict)
    """Possible answers to each of them."""
    branches: Sequence[Run] = ()
    """Training runs that start from its checkpoints."""

    @property
    def steering_role(self) -> Role:
        """The role that stopping and resuming needs."""
        return Role.TRAINER if self.run.kind is RunKind.TRAINING else Role.AUTHOR

    @property
    def can_stop(self) -> bool:
        is_played = self.run.kind is RunKind.PLAY  # ended on its own page
        return not is_played and not self.run.status.is_over and self.run.stop_requested_at is None

    @property
    def stopping(self) -> str:
        """Effect of a stop on the current work."""
        if self.run.kind is RunKind.EVALUATION:
            return "Current rollouts are canceled, finished ones are kept."
        return "The current work is finished first."

    @property
    def can_resume(self) -> bool:
        return self.run.can_resume and self.run.kind is not RunKind.PLAY

    @property
    def is_comparable(self) -> bool:
        return self.run.kind in COMPARABLE

    @property
    def origin(self) -> str:
        """How this run relates to its source."""
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
    def rate(self) -> float | None:
        """Per second."""
        rate = self.run.progress.get("rate")
        return float(rate) if rate else None

    @property
    def seconds_left(self) -> float | None:
        """The worker's estimate, else by the rate so far."""
        progress = self.run.progress
        if (estimate := progress.get("seconds_left")) is not None:
            return float(estimate)
        left = int(progress.get("total") or 0) - int(progress.get("done") or 0)
        return left / self.rate if self.rate and left > 0 else None

    @property
    def seconds(self) -> float | None:
        """From the start to the end or until now."""
        if self.run.started_at is None:
            return None
        return ((self.run.ended_at or datetime.now(UTC)) - self.run.started_at).total_seconds()


def head_blocks(request: Request, head: RunHeader) -> dict[str, str]:
    """The blocks that a live stream updates above the tab's own part."""
    return {name: render_block(request, TEMPLATE, name, {"head": head}) for name in ("run_head", "run_tabs")}


def run_header(session: Session, run: Run) -> RunHeader:
    state = queries.judging_state(session, run.id)
    is_training = run.kind is RunKind.TRAINING
    alarms = queries.open_alarms(session, run.id) if is_training else []
    return RunHeader(
        run,
        state.flags,
        state.graders,
        is_settled=run.status.is_over and not state.awaits_detectors,
        has_verdicts=state.has_verdicts,
        source=source_of(session, run),
        alarms=alarms,
        answers=offered_answers(session, run, alarms),
        branches=queries.branches_of(session, run.id) if is_training else (),
    )
