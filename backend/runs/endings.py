"""Telling people that a run ended by itself and not as it should."""

from sqlalchemy.orm import Session

from backend.domain.notifications.notices import NoticeKind
from backend.domain.vocabulary import RunKind, RunStatus
from backend.notifications.outbox import announce
from backend.runs.tables import Run


def tell_of_ending(session: Session, run: Run) -> None:
    """A failure, and an evaluation that its circuit breaker paused. Alarms tell of training that they pause."""
    if run.kind is RunKind.PLAY:
        return
    if run.status is RunStatus.FAILED:
        _tell(session, run, NoticeKind.RUN_FAILED, "failed")
    elif run.status is RunStatus.PAUSED and run.kind is RunKind.EVALUATION:
        _tell(session, run, NoticeKind.ALARM, "paused itself")


def _tell(session: Session, run: Run, kind: NoticeKind, did: str) -> None:
    announce(
        session,
        kind=kind,
        title=f"{run.name} {did}",
        text=run.reason or "No reason was recorded.",
        path=f"/runs/{run.id}",
        run_id=run.id,
        evidence={"status": str(run.status), "attempt": run.attempt, "progress": run.progress},
    )
