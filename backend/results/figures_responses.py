"""What the JSON API says of a run's figures."""

import uuid
from typing import Any

from pydantic import BaseModel

from backend.domain.results.pass_at_k import PassAt, SuccessRule
from backend.domain.review.judged_curve import Share
from backend.domain.statistics import Coverage, Estimate
from backend.results.environment_figures import EnvironmentFigures, LevelFigures
from backend.results.figures import ColumnFigures, Outcomes
from backend.results.run_figures import FailureMessage, RunFigures
from backend.runs.tables import Run


class ColumnAnswer(BaseModel):
    """One reward column, or the reward: its mean and 95 % interval over tasks, null where nothing is completed."""

    name: str
    weight: float | None
    mean: float | None
    low: float | None
    high: float | None
    tasks: int
    rollouts: int
    levels: dict[int, Estimate]
    distribution: list[dict[str, float]]
    """`{low, high, count}`; low = high where a bar stands for one value."""

    @classmethod
    def of(cls, column: ColumnFigures) -> "ColumnAnswer":
        found = column.estimate
        return cls(
            name=column.name,
            weight=column.weight,
            mean=found and found.mean,
            low=found and found.low,
            high=found and found.high,
            tasks=found.count if found else 0,
            rollouts=column.rollouts,
            levels=column.by_level,
            distribution=[{"low": bar.low, "high": bar.high, "count": bar.count} for bar in column.bars],
        )


class CoverageAnswer(BaseModel):
    """How many of the rollouts that were to be played have a reward."""

    completed: int
    total: int

    @classmethod
    def of(cls, coverage: Coverage) -> "CoverageAnswer":
        return cls(completed=coverage.completed, total=coverage.total)


class PassAnswer(BaseModel):
    """pass@k and pass^k with 95 % intervals over the tasks with at least k completed rollouts."""

    k: int
    pass_at_k: Estimate
    pass_hat_k: Estimate
    tasks: int

    @classmethod
    def of(cls, found: PassAt) -> "PassAnswer":
        return cls(k=found.k, pass_at_k=found.any, pass_hat_k=found.all, tasks=found.tasks)


class LevelAnswer(BaseModel):
    """One level: reward and success over its tasks."""

    level: int
    reward: Estimate | None
    success: Estimate | None
    coverage: CoverageAnswer

    @classmethod
    def of(cls, found: LevelFigures) -> "LevelAnswer":
        return cls(
            level=found.level,
            reward=found.reward,
            success=found.success,
            coverage=CoverageAnswer.of(found.coverage),
        )


class EnvironmentAnswer(BaseModel):
    """One of a run's environments: its own columns, levels and rule of success."""

    name: str
    version_id: uuid.UUID
    version: int
    coverage: CoverageAnswer
    success: "SuccessAnswer"
    columns: list[ColumnAnswer]
    """The reward first."""
    levels: list[LevelAnswer]
    cheat_rate: "CheatRateAnswer | None"
    """Of the whole run; null: it played no impossible task of this environment."""

    @classmethod
    def of(cls, found: EnvironmentFigures) -> "EnvironmentAnswer":
        return cls(
            name=found.name,
            version_id=found.version.id,
            version=found.version.number,
            coverage=CoverageAnswer.of(found.coverage),
            success=SuccessAnswer.of(found.rule, found.groups.success),
            columns=[ColumnAnswer.of(column) for column in found.columns],
            levels=[LevelAnswer.of(each) for each in found.levels],
            cheat_rate=CheatRateAnswer.of(found.cheat_rate) if found.cheat_rate else None,
        )


class FailureAnswer(BaseModel):
    """One message of failed rollouts."""

    kind: str
    message: str
    count: int
    rollout_id: uuid.UUID
    """The first with it."""

    @classmethod
    def of(cls, found: FailureMessage) -> "FailureAnswer":
        return cls(kind=found.kind, message=found.message, count=found.count, rollout_id=found.rollout_id)


class SuccessAnswer(BaseModel):
    """What counts as success, and its rate over tasks."""

    column: str
    at_least: float
    where: str
    """The filter of the rollouts that succeed."""
    rate: Estimate | None

    @classmethod
    def of(cls, rule: SuccessRule, rate: Estimate | None) -> "SuccessAnswer":
        return cls(column=rule.column, at_least=rule.at_least, where=rule.expression, rate=rate)


class SpentAnswer(BaseModel):
    """Tokens, money and seconds of all rollouts in the scope."""

    tokens_in: int
    tokens_out: int
    turns: int
    truncated: int
    cost: float | None
    """US dollars; null where the policy has no price."""
    priced: int
    """Rollouts whose price is known."""
    queue_seconds: float
    policy_seconds: float
    environment_seconds: float

    @classmethod
    def of(cls, found: Outcomes) -> "SpentAnswer":
        return cls(**{name: getattr(found, name) for name in cls.model_fields})


class CheatRateAnswer(BaseModel):
    """Impossible tasks that were passed, with Wilson's 95 % limits."""

    rate: float | None
    low: float
    high: float
    passed: int
    played: int

    @classmethod
    def of(cls, share: Share) -> "CheatRateAnswer":
        return cls(rate=share.value, low=share.low, high=share.high, passed=share.found, played=share.looked_at)


class FiguresAnswer(BaseModel):
    """All figures of a run, or of one step of a training run. No average counts a failed rollout."""

    run_id: uuid.UUID
    phase: str | None
    step: int | None
    coverage: CoverageAnswer
    success: SuccessAnswer
    columns: list[ColumnAnswer]
    """The reward first."""
    passes: list[PassAnswer]
    levels: list[LevelAnswer]
    environments: list[EnvironmentAnswer]
    """Each one's own, of a training run that plays several; its levels are there, and `levels` is empty."""
    cheat_rate: CheatRateAnswer | None
    """Of the whole run; null: it played no impossible task. No other figure counts those."""
    groups: dict[str, Any] | None
    """{groups, mixed, all_good, all_bad}: of the groups with several completed rollouts."""
    statuses: dict[str, int]
    stop_reasons: dict[str, int]
    failures: list[FailureAnswer]
    spent: SpentAnswer
    rollouts_per_second: float | None

    @classmethod
    def of(cls, run: Run, found: RunFigures) -> "FiguresAnswer":
        shares = found.groups.shares
        return cls(
            run_id=run.id,
            phase=found.scope.phase,
            step=found.scope.step,
            coverage=CoverageAnswer.of(found.coverage),
            success=SuccessAnswer.of(found.rule, found.groups.success),
            columns=[ColumnAnswer.of(column) for column in found.columns],
            passes=[PassAnswer.of(each) for each in found.groups.passes],
            levels=[LevelAnswer.of(each) for each in found.levels],
            environments=[EnvironmentAnswer.of(each) for each in found.environments],
            cheat_rate=CheatRateAnswer.of(found.cheat_rate) if found.cheat_rate else None,
            groups=shares and {name: getattr(shares, name) for name in ("groups", "mixed", "all_good", "all_bad")},
            statuses=found.scoped.statuses,
            stop_reasons=found.scoped.stop_reasons,
            failures=[FailureAnswer.of(each) for each in found.messages],
            spent=SpentAnswer.of(found.scoped),
            rollouts_per_second=run.summary.get("rollouts_per_second"),
        )
