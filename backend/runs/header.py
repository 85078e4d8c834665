"""What stands on top of every tab of a run: name, status, progress, tabs."""

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


@dataclass(frozen=True, slots=True)
class RunHeader:
    """A run's head as of now."""

    run: Run
    flag_count: int
    grader_count: int
    is_settled: bool
    """Nothing about the run changes by itself any more: it is over, and the detectors have looked at it."""
    has_verdicts: bool = False
    """People judged some of its rollouts."""
    source: Run | None = None
    """The run that this one repeats, re-scores, replays or branches off."""
    alarms: Sequence[Alarm] = ()
    """Of a training run: those that are open."""
    answers: Mapping[uuid.UUID, Sequence[OfferedAnswer]] = field(default_factory=dict)
    """What can be done about each of them."""
    branches: Sequence[Run] = ()
    """Of a training run: those that go on from its checkpoints."""

    @property
    def steering_role(self) -> Role:
        """What stopping and resuming needs."""
        return Role.TRAINER if self.run.kind is RunKind.TRAINING else Role.AUTHOR

    @property
    def can_stop(self) -> bool:
        is_played = self.run.kind is RunKind.PLAY  # left on its own page
        return not is_played and not self.run.status.is_over and self.run.stop_requested_at is None

    @property
    def stopping(self) -> str:
        """What becomes of the work under way, in words."""
        if self.run.kind is RunKind.EVALUATION:
            return "Rollouts under way are cancelled, finished ones are kept."
        return "What is under way is finished first."

    @property
    def can_resume(self) -> bool:
        return self.run.can_resume and self.run.kind is not RunKind.PLAY

    @property
    def is_comparable(self) -> bool:
        return self.run.kind in {RunKind.EVALUATION, RunKind.TRAINING, RunKind.RESCORE, RunKind.REPLAY}

    @property
    def origin(self) -> str:
        """What this run did with its source, in words."""
        if self.run.branch_step is not None:
            is_moved = self.source is not None and self.source.version_id != self.run.version_id
            return f"branched{' onto another version' if is_moved else ''} at step {self.run.branch_step} off"
        words = {RunKind.RESCORE: "re-scored from", RunKind.REPLAY: "replayed from"}
        return words.get(self.run.kind, "again after")

    @property
    def rollout_count(self) -> int:
        """Those that stand; while it runs, all that were written, also those that were played again since."""
        counted = self.run.summary.get("rollouts") if self.run.status.is_over else None
        return counted if isinstance(counted, int) else self.run.next_seq - 1

    @property
    def done(self) -> int:
        return int(self.run.progress.get("done") or 0)

    @property
    def total(self) -> int:
        return int(self.run.progress.get("total") or 0)

    @property
    def rate(self) -> float | None:
        """A second."""
        rate = self.run.progress.get("rate")
        return float(rate) if rate else None

    @property
    def seconds_left(self) -> float | None:
        """As the worker foresees it, else at the rate so far."""
        if (foreseen := self.run.progress.get("seconds_left")) is not None:
            return float(foreseen)
        return (self.total - self.done) / self.rate if self.rate and self.total > self.done else None

    @property
    def seconds(self) -> float | None:
        """From the start to the end or until now."""
        if self.run.started_at is None:
            return None
        return ((self.run.ended_at or datetime.now(UTC)) - self.run.started_at).total_seconds()


def head_blocks(request: Request, head: RunHeader) -> dict[str, str]:
    """What a live stream draws anew above the part of its tab."""
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
