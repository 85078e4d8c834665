"""What the JSON API says of policies, runs and rollouts."""

import uuid
from datetime import datetime
from typing import Any

from pydantic import BaseModel

from backend.db.models import Policy, Rollout, RunLogLine
from backend.db.models import Run as RunRow
from backend.domain.statistics import Estimate
from backend.domain.vocabulary import ErrorKind, Phase, PolicyKind, RolloutStatus, RunKind, RunStatus, Split, StopReason
from backend.evaluations.baselines import Baseline
from backend.evaluations.comparison import Comparison, Side
from backend.evaluations.rollout_queries import columns_of


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
    columns: list[str]
    weights: list[float]
    seed: int
    progress: dict[str, Any]
    summary: dict[str, Any]
    """Final figures: for evaluations `reward` and `columns`, each {mean, low, high, count}."""
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
        }
        return cls(**(same | named))


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
        named = {"split", "index", "seed", "columns"}
        same = {name: getattr(rollout, name) for name in RolloutAnswer.model_fields if name not in named}
        task = rollout.group.task
        return RolloutAnswer(
            **same, split=task.split, index=task.index, seed=task.seed, columns=columns_of(run, rollout)
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


class SideAnswer(BaseModel):
    """One side of a comparison."""

    run_id: uuid.UUID
    name: str
    phase: Phase
    step: int | None

    @classmethod
    def of(cls, side: Side) -> "SideAnswer":
        return cls(run_id=side.run.id, name=side.run.name, phase=side.phase, step=side.step)


class BaselineAnswer(BaseModel):
    """A baseline on the same tasks; `run_id` is null where nobody evaluated it yet."""

    script: str
    run_id: uuid.UUID | None
    reward: Estimate | None

    @classmethod
    def of(cls, baseline: Baseline) -> "BaselineAnswer":
        return cls(script=baseline.script, run_id=baseline.run_id, reward=baseline.reward)


class ColumnDifferenceAnswer(BaseModel):
    """One column on both sides and after minus before, each {mean, low, high, count}."""

    name: str
    weight: float | None
    before: Estimate
    after: Estimate
    difference: Estimate


class LevelDifferenceAnswer(BaseModel):
    """The reward at one level."""

    level: int
    tasks: int
    before: float
    after: float
    difference: Estimate


class TaskDifferenceAnswer(BaseModel):
    """One task's reward on both sides."""

    task_id: uuid.UUID
    index: int
    level: int
    before: float
    after: float
    difference: float
    rollout_before: uuid.UUID
    rollout_after: uuid.UUID


class ComparisonAnswer(BaseModel):
    """Two runs on the tasks that both of them completed."""

    before: SideAnswer
    after: SideAnswer
    wins: int
    losses: int
    ties: int
    only_before: int
    only_after: int
    columns: list[ColumnDifferenceAnswer]
    """The reward first."""
    levels: list[LevelDifferenceAnswer]
    baselines: list[BaselineAnswer]
    tasks: list[TaskDifferenceAnswer]
    """Most improved first."""

    @classmethod
    def of(cls, before: Side, after: Side, found: Comparison, baselines: list[Baseline]) -> "ComparisonAnswer":
        return cls(
            before=SideAnswer.of(before),
            after=SideAnswer.of(after),
            wins=found.wins,
            losses=found.losses,
            ties=found.ties,
            only_before=found.only_before,
            only_after=found.only_after,
            columns=[ColumnDifferenceAnswer.model_validate(column, from_attributes=True) for column in found.columns],
            levels=[LevelDifferenceAnswer.model_validate(level, from_attributes=True) for level in found.levels],
            baselines=[BaselineAnswer.of(baseline) for baseline in baselines],
            tasks=[
                TaskDifferenceAnswer(
                    task_id=pair.task_id,
                    index=pair.index,
                    level=pair.level,
                    before=pair.before[-1],
                    after=pair.after[-1],
                    difference=pair.difference,
                    rollout_before=pair.rollout_before,
                    rollout_after=pair.rollout_after,
                )
                for pair in found.pairs
            ],
        )
