"""What operations of runs return."""

import uuid
from datetime import datetime
from typing import Any

from pydantic import BaseModel

from backend.domain.statistics import Coverage
from backend.domain.vocabulary import RunKind, RunStatus
from backend.operations.schemas import Progress
from backend.runs.tables import Run as RunRow
from backend.runs.tables import RunLogLine


class RunAnswer(Progress):
    """A run."""

    id: uuid.UUID
    kind: RunKind
    name: str
    status: RunStatus
    environment: str
    version: int
    version_id: uuid.UUID
    policy: str | None
    policy_id: uuid.UUID | None
    checkpoint_id: uuid.UUID | None
    source_run_id: uuid.UUID | None
    """The run that this one re-scores, replays, does again or branches off."""
    branch_step: int | None
    """Of a training run that branches off another: the step whose weights it goes on from."""
    columns: list[str]
    weights: list[float]
    seed: int
    progress: dict[str, Any]
    summary: dict[str, Any]
    """Final figures: for evaluations `reward` and `columns`, each {mean, low, high, count}."""
    coverage: Coverage | None
    """Completed rollouts of those that were to be played, once that is known."""
    reason: str | None
    """Why it failed, paused or stopped."""
    attempt: int
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None

    @classmethod
    def of(cls, run: RunRow) -> "RunAnswer":
        same = {name: getattr(run, name) for name in cls.model_fields if hasattr(run, name)}
        failed = int(run.summary.get("failed") or 0)
        named = {
            "is_finished": run.status.is_over,
            "is_successful": run.status is RunStatus.COMPLETED and not failed,
            "done": int(run.progress.get("done") or 0),
            "total": int(run.progress["total"]) if run.progress.get("total") else None,
            "message": run.reason or str(run.progress.get("message") or run.progress.get("phase") or run.status),
            "environment": run.version.environment.name,
            "version": run.version.number,
            "policy": run.policy.name if run.policy else None,
            "coverage": _coverage(run),
        }
        return cls(**(same | named))


def _coverage(run: RunRow) -> Coverage | None:
    completed = run.summary.get("completed")
    if not isinstance(completed, int):
        return None
    total = max(int(run.progress.get("total") or 0), int(run.summary.get("rollouts") or 0))
    return Coverage(completed=completed, total=total)


class RunDetailAnswer(RunAnswer):
    """A run with its resolved configuration."""

    configuration: dict[str, Any]
    content_hash: str

    @classmethod
    def of(cls, run: RunRow) -> "RunDetailAnswer":
        whole = RunAnswer.of(run).model_dump()
        return cls(**whole, configuration=run.configuration, content_hash=run.version.content_hash)


class LogLineAnswer(BaseModel):
    """One line of a run's log."""

    id: int
    at: datetime
    level: str
    message: str

    @classmethod
    def of(cls, line: RunLogLine) -> "LogLineAnswer":
        return cls(id=line.id, at=line.at, level=line.level, message=line.message)
