"""Stop and resume a sweep. The job `sweeps.run` advances it; the end of each run and each held-out reward wake it."""

from datetime import UTC, datetime

from sqlalchemy.orm import Session

from backend.core.events import SWEEPS, announce, topic_of
from backend.domain.vocabulary import RunStatus
from backend.errors import Conflict
from backend.runs.service import request_stop
from backend.sweeps import queries
from backend.sweeps.tables import Sweep
from backend.sweeps.waking import wake_sweep
from backend.web.audit import Requester

STOPPED_WITH_SWEEP = "Stopped with the sweep."
"""Reason of trials that are resumed with their sweep."""


class SweepConflict(Conflict):
    """This sweep cannot be stopped or resumed now."""


def stop_sweep(session: Session, actor: Requester, sweep: Sweep) -> None:
    """Stop a sweep and its runs in progress. Everything that they stored is kept."""
    session.refresh(sweep, ["status"], with_for_update={"of": Sweep})
    if sweep.status.is_over:
        raise SweepConflict(f"This sweep is already {sweep.status}.")
    end_sweep(session, sweep, RunStatus.STOPPED, "Stopped on request.")
    for trial in queries.list_trials(session, sweep.id):
        run = trial.run
        if run is not None and not run.status.is_over and run.stop_requested_at is None:
            trial.reason = STOPPED_WITH_SWEEP
            request_stop(session, actor, run)


def resume_sweep(session: Session, sweep: Sweep) -> None:
    """Continue a stopped or failed sweep with its trials so far. Runs that stopped with it continue too."""
    session.refresh(sweep, ["status"], with_for_update={"of": Sweep})
    if not sweep.status.is_over:
        raise SweepConflict("This sweep is in progress.")
    if sweep.status is RunStatus.COMPLETED:
        raise SweepConflict("This sweep is completed. Start a new one.")
    sweep.status, sweep.reason, sweep.ended_at = RunStatus.QUEUED, None, None
    session.flush()
    wake_sweep(session, sweep.id)
    announce(session, SWEEPS, topic_of("sweep", sweep.id))


def end_sweep(session: Session, sweep: Sweep, status: RunStatus, reason: str | None = None) -> None:
    sweep.status, sweep.reason, sweep.ended_at = status, reason, datetime.now(UTC)
    session.flush()
    announce(session, SWEEPS, topic_of("sweep", sweep.id))
