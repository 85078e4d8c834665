"""What the JSON API says of policies, runs and rollouts."""

import uuid
from datetime import datetime
from typing import Any

from pydantic import BaseModel

from backend.domain.vocabulary import ErrorKind, Phase, PolicyKind, RolloutStatus, RunKind, RunStatus, Split, StopReason
from backend.policies.tables import Policy
from backend.results.figures_responses import CoverageAnswer
from backend.rollouts.queries import columns_of
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run as RunRow
from backend.runs.tables import RunLogLine


class PolicyAnswer(BaseModel):
    """A policy. Its key, if it has one, is never told."""

    id: uuid.UUID
    name: str
    kind: PolicyKind
    description: str
    configuration: dict[str, Any]
    has_secret: bool
    created_at: datetime

    @classmethod
    def of(cls, policy: Policy) -> "PolicyAnswer":
        return cls(
            id=policy.id,
            name=policy.name,
            kind=policy.kind,
            description=policy.description,
            configuration=policy.configuration,
            has_secret=policy.secret is not None,
            created_at=policy.created_at,
        )


class RunAnswer(BaseModel):
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
    coverage: CoverageAnswer | None
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
        named = {
            "environment": run.version.environment.name,
            "version": run.version.number,
            "policy": run.policy.name if run.policy else None,
            "coverage": _coverage(run),
        }
        return cls(**(same | named))


def _coverage(run: RunRow) -> CoverageAnswer | None:
    completed = run.summary.get("completed")
    if not isinstance(completed, int):
        return None
    total = max(int(run.progress.get("total") or 0), int(run.summary.get("rollouts") or 0))
    return CoverageAnswer(completed=completed, total=total)


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


class RolloutAnswer(BaseModel):
    """A rollout as a list shows it."""

    id: uuid.UUID
    run_id: uuid.UUID
    group_id: uuid.UUID
    member: int
    seq: int
    split: Split
    index: int
    """Of the task."""
    seed: int
    """Of the task."""
    level: int
    version_id: uuid.UUID
    """Environment version of the task: the run's own, unless it trains on several."""
    phase: Phase
    training_step: int | None
    status: RolloutStatus
    stop_reason: StopReason | None
    error_kind: ErrorKind | None
    error_message: str | None
    reward: float | None
    """Null unless the status is `completed`."""
    columns: dict[str, float]
    metrics: dict[str, Any]
    advantage: float | None
    turns: int
    tokens_in: int
    tokens_out: int
    is_truncated: bool
    policy_seconds: float
    environment_seconds: float
    excerpt: str
    ended_at: datetime | None

    @classmethod
    def of(cls, run: RunRow, rollout: Rollout) -> "RolloutAnswer":
        named = {"split", "index", "seed", "version_id", "columns"}
        same = {name: getattr(rollout, name) for name in RolloutAnswer.model_fields if name not in named}
        task = rollout.group.task
        return RolloutAnswer(
            **same,
            split=task.split,
            index=task.index,
            seed=task.seed,
            version_id=task.version_id,
            columns=columns_of(run, rollout),
        )


class RolloutDetailAnswer(RolloutAnswer):
    """A rollout whole."""

    opening: dict[str, Any]
    steps: list[dict[str, Any]]
    messages: list[dict[str, Any]]
    tokens: dict[str, Any] | None

    @classmethod
    def of(cls, run: RunRow, rollout: Rollout) -> "RolloutDetailAnswer":
        return cls(
            **RolloutAnswer.of(run, rollout).model_dump(),
            opening=rollout.opening,
            steps=rollout.steps,
            messages=rollout.messages,
            tokens=rollout.tokens,
        )
