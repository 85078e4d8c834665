"""What operations of runs return. Separate from requests, because results use those."""

import uuid
from datetime import datetime
from typing import Self

from backend.domain.vocabulary import RunKind, RunStatus
from backend.operations.schemas import Progress, Response
from backend.results.figures_responses import CoverageAnswer
from backend.runs.tables import Run


class RunResponse(Progress):
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
    """The run that this one rescores, replays, repeats or branches from."""
    branch_step: int | None
    """Branches of a training run: the step whose weights it started from."""
    columns: list[str]
    weights: list[float]
    seed: int
    progress: dict[str, object]
    summary: dict[str, object]
    """Final figures. Evaluations: `reward` and `columns`, each {mean, low, high, count}."""
    coverage: CoverageAnswer | None
    """Completed rollouts of all rollouts, once known."""
    reason: str | None
    """Why it failed, paused or stopped."""
    attempt: int
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None

    @classmethod
    def of(cls, run: Run) -> Self:
        failed, completed = int(run.summary.get("failed") or 0), run.summary.get("completed")
        total = int(run.progress.get("total") or 0)
        values = {
            "is_finished": run.status.is_over,
            "is_successful": run.status is RunStatus.COMPLETED and not failed,
            "done": int(run.progress.get("done") or 0),
            "total": total or None,
            "message": run.reason or str(run.progress.get("message") or run.progress.get("phase") or run.status),
            "environment": run.version.environment.name,
            "version": run.version.number,
            "content_hash": run.version.content_hash,
            "policy": run.policy.name if run.policy else None,
            "coverage": CoverageAnswer(completed=completed, total=max(total, int(run.summary.get("rollouts") or 0)))
            if isinstance(completed, int)
            else None,
        }
        return cls(**values, **{name: getattr(run, name) for name in cls.model_fields if name not in values})


class RunDetailResponse(RunResponse):
    """A run with its resolved configuration."""

    configuration: dict[str, object]
    content_hash: str


class LogLineResponse(Response):
    """One line of a run's log."""

    id: int
    at: datetime
    level: str
    message: str
