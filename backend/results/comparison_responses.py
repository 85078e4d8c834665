"""What the JSON API says of a comparison."""

import uuid
from dataclasses import asdict

from pydantic import BaseModel

from backend.domain.statistics import Estimate
from backend.domain.vocabulary import Phase
from backend.results.baselines import Baseline
from backend.results.comparability import Remark
from backend.results.comparison import Comparison, Duel, Pairing, Side, TaskPair


class SideAnswer(BaseModel):
    """One side of a comparison."""

    run_id: uuid.UUID
    name: str
    phase: Phase | None
    step: int | None

    @classmethod
    def of(cls, side: Side) -> "SideAnswer":
        return cls(run_id=side.run.id, name=side.run.name, phase=side.phase, step=side.step)


class StandingAnswer(SideAnswer):
    """A side on the shared tasks: its mean reward, and the tasks that it has besides."""

    policy: str
    reward: Estimate | None
    completed_tasks: int


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

    @classmethod
    def of(cls, pair: TaskPair) -> "TaskDifferenceAnswer":
        same = {name: getattr(pair, name) for name in ("task_id", "index", "level", "difference")}
        examples = {"rollout_before": pair.rollout_before, "rollout_after": pair.rollout_after}
        return cls(**same, **examples, before=pair.before[-1], after=pair.after[-1])


class PairingAnswer(BaseModel):
    """A run against the first one, paired over the shared tasks."""

    after: SideAnswer
    wins: int
    losses: int
    ties: int
    sign_test: float | None
    """Two-sided p of the exact sign test over the tasks that differ."""
    permutation_test: float | None
    """Two-sided p of the mean difference of the reward under random signs."""
    columns: list[ColumnDifferenceAnswer]
    """The reward first."""
    levels: list[LevelDifferenceAnswer]

    @classmethod
    def of(cls, found: Pairing) -> "PairingAnswer":
        test = found.test
        return cls(
            after=SideAnswer.of(found.after.side),
            wins=test.wins,
            losses=test.losses,
            ties=test.ties,
            sign_test=test.sign,
            permutation_test=test.permutation,
            columns=[ColumnDifferenceAnswer.model_validate(each, from_attributes=True) for each in found.columns],
            levels=[LevelDifferenceAnswer.model_validate(each, from_attributes=True) for each in found.levels],
        )


class RemarkAnswer(BaseModel):
    """What one should know before believing it, and where it can be mended."""

    text: str
    href: str
    action: str

    @classmethod
    def of(cls, remark: Remark) -> "RemarkAnswer":
        return cls(text=remark.text, href=remark.href, action=remark.action)


class ComparisonAnswer(PairingAnswer):
    """Runs on the tasks that all of them completed. What is said of two sides is of the first run and the second."""

    before: SideAnswer
    shared_tasks: int
    only_before: int
    only_after: int
    runs: list[StandingAnswer]
    pairings: list[PairingAnswer]
    """Every further run against the first."""
    matrix: list[list[dict[str, int]]]
    """`matrix[i][j]`: run i against run j, `{wins, losses, ties}` over the shared tasks."""
    remarks: list[RemarkAnswer]
    baselines: list[BaselineAnswer]
    tasks: list[TaskDifferenceAnswer]
    """Most improved first; of very many, those at either end."""

    @classmethod
    def whole(cls, found: Comparison, pairs: list[TaskPair], beside: list[Baseline]) -> "ComparisonAnswer":
        first = found.pairings[0]
        return cls(
            **PairingAnswer.of(first).model_dump(),
            before=SideAnswer.of(first.before.side),
            shared_tasks=len(found.shared),
            only_before=found.only(0),
            only_after=found.only(1),
            runs=[_standing(found, position) for position in range(len(found.sides))],
            pairings=[PairingAnswer.of(each) for each in found.pairings],
            matrix=[[_duel(duel) for duel in row] for row in found.matrix],
            remarks=[RemarkAnswer.of(remark) for remark in found.remarks],
            baselines=[BaselineAnswer.of(baseline) for baseline in beside],
            tasks=[TaskDifferenceAnswer.of(pair) for pair in pairs],
        )


def _standing(found: Comparison, position: int) -> StandingAnswer:
    side = found.sides[position].side
    return StandingAnswer(
        **SideAnswer.of(side).model_dump(),
        policy=side.label,
        reward=found.means[position],
        completed_tasks=len(found.sides[position].tasks),
    )


def _duel(duel: Duel) -> dict[str, int]:
    return asdict(duel)
