"""A leaderboard as JSON and as CSV."""

import csv
import io
import uuid
from datetime import datetime

from pydantic import BaseModel

from backend.domain.statistics import Estimate
from backend.domain.vocabulary import PolicyKind
from backend.results.figures_responses import CoverageAnswer
from backend.results.leaderboard import Leaderboard, Standing

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet takes a cell that begins so for a formula."""


class StandingAnswer(BaseModel):
    """A contender: a policy with its checkpoint and its sampling."""

    rank: int | None
    """The highest that its interval allows; null where it is not ranked."""
    worst_rank: int | None
    name: str
    mark: str
    """`baseline`, `script`, `imported`, `re-scored`, `replayed` or empty."""
    policy_id: uuid.UUID
    policy_kind: PolicyKind
    checkpoint_id: uuid.UUID | None
    run_id: uuid.UUID
    runs: int
    temperature: float | None
    """Null for scripts."""
    reward: Estimate | None
    success: Estimate | None
    success_rule: str
    coverage: CoverageAnswer
    tokens: float | None
    """In and out, a rollout."""
    cost: float | None
    """US dollars a rollout; null where the price is unknown."""
    total_cost: float | None
    at: datetime
    reason: str
    """Why it is not ranked; empty where it is."""

    @classmethod
    def of(cls, each: Standing) -> "StandingAnswer":
        same = {name: getattr(each, name) for name in ("name", "mark", "runs", "reward", "success", "tokens", "cost")}
        return cls(
            **same,
            rank=each.best or None,
            worst_rank=each.worst or None,
            policy_id=each.policy.id,
            policy_kind=each.policy.kind,
            checkpoint_id=each.checkpoint and each.checkpoint.id,
            run_id=each.run.id,
            temperature=each.temperature if each.samples else None,
            success_rule=each.rule,
            coverage=CoverageAnswer.of(each.coverage),
            total_cost=each.total_cost,
            at=each.when,
            reason=each.reason,
        )


class ExamAnswer(BaseModel):
    """What all who are ranked together have in common."""

    key: str
    label: str
    contenders: int


class LeaderboardAnswer(BaseModel):
    """The contenders of one environment version."""

    environment: str
    version: int
    content_hash: str
    exam: ExamAnswer | None
    exams: list[ExamAnswer]
    ranked: list[StandingAnswer]
    """Best mean first; ranks overlap where intervals do."""
    apart: list[StandingAnswer]
    """Not comparable with them, each with its reason."""

    @classmethod
    def of(cls, found: Leaderboard) -> "LeaderboardAnswer":
        exams = [ExamAnswer(key=exam.key, label=exam.label, contenders=count) for exam, count in found.exams]
        return cls(
            environment=found.version.environment.name,
            version=found.version.number,
            content_hash=found.version.content_hash,
            exam=next((each for each in exams if found.exam and each.key == found.exam.key), None),
            exams=exams,
            ranked=[StandingAnswer.of(each) for each in found.ranked],
            apart=[StandingAnswer.of(each) for each in found.apart],
        )


COLUMNS = (
    *("rank", "worst_rank", "name", "mark", "reward", "low", "high", "tasks", "success", "success_rule"),
    *("completed", "rollouts", "tokens_a_rollout", "usd_a_rollout", "usd", "temperature", "date", "run_id", "reason"),
)


def as_csv(found: Leaderboard) -> str:
    """Ranked rows, then those apart."""
    text = io.StringIO()
    lines = csv.writer(text)
    lines.writerow(COLUMNS)
    for each in [*found.ranked, *found.apart]:
        lines.writerow([_cell(value) for value in _values(each)])
    return text.getvalue()


def _values(each: Standing) -> list[object]:
    reward = each.reward
    return [
        each.best or None,
        each.worst or None,
        each.name,
        each.mark,
        *((reward.mean, reward.low, reward.high, reward.count) if reward else (None,) * 4),
        each.success and each.success.mean,
        each.rule,
        each.coverage.completed,
        each.coverage.total,
        each.tokens,
        each.cost,
        each.total_cost,
        each.temperature if each.samples else None,
        each.when.isoformat(),
        each.run.id,
        each.reason,
    ]


def _cell(value: object) -> object:
    """Names are other people's text."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
