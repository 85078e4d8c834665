"""Runs on the same tasks and seeds: paired differences to the first of them, and who wins over whom how often."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlalchemy.orm import Session

from backend.domain.results.pass_at_k import REWARD
from backend.domain.statistics import (
    TIE,
    Estimate,
    PairedTest,
    estimate_mean,
    paired_difference,
    paired_test,
)
from backend.results.comparability import Remark, has_same_reward, obstacles, remarks
from backend.results.scores import Scores, Side, TaskKey, first_rollouts, scores, side_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["MOST_SIDES", "TIE", "Comparison", "Side", "TaskPair", "compare", "side_of"]

MOST_SIDES = 8


@dataclass(frozen=True, slots=True)
class TaskPair:
    """One task that both sides played: mean of each column over its rollouts on either side, the reward last."""

    task_id: uuid.UUID
    """In the version of the second side."""
    index: int
    level: int
    before: list[float]
    after: list[float]
    rollout_before: uuid.UUID
    """The first completed member of its group."""
    rollout_after: uuid.UUID

    @property
    def difference(self) -> float:
        """Of the reward."""
        return self.after[-1] - self.before[-1]


@dataclass(frozen=True, slots=True)
class ColumnDifference:
    """One column on both sides. `difference` is after minus before over tasks, with its 95 % interval."""

    name: str
    weight: float | None
    before: Estimate
    after: Estimate
    difference: Estimate


@dataclass(frozen=True, slots=True)
class LevelDifference:
    """The reward at one level."""

    level: int
    tasks: int
    before: float
    after: float
    difference: Estimate


@dataclass(slots=True)
class Pairing:
    """A side against the first one, on the shared tasks."""

    before: Scores
    after: Scores
    columns: list[ColumnDifference]
    """The reward first."""
    levels: list[LevelDifference]
    test: PairedTest
    """Of the reward."""
    order: NDArray[np.int64]
    """Positions in the shared tasks, most improved first."""
    differences: NDArray[np.float64]
    """Of the reward, in the order of the shared tasks."""

    @property
    def reward(self) -> ColumnDifference:
        return self.columns[0]

    @property
    def verdict(self) -> str:
        """Of the second side, in a word: nothing where the rewards are not the same sum."""
        if not has_same_reward(self.before.side.run, self.after.side.run):
            return ""
        difference = self.reward.difference
        if not difference.excludes_zero:
            return "undecided"
        return "better" if difference.mean > 0 else "worse"


@dataclass(frozen=True, slots=True)
class Duel:
    """One side against another: on how many shared tasks it earns more, as much, less."""

    wins: int
    losses: int
    ties: int


@dataclass(slots=True)
class Comparison:
    """What the sides amount to on the tasks that all of them completed."""

    sides: list[Scores]
    shared: list[TaskKey]
    means: list[Estimate | None]
    """Of the reward, by side."""
    pairings: list[Pairing] = field(default_factory=list)
    """Every further side against the first."""
    matrix: list[list[Duel]] = field(default_factory=list)
    """Row against column."""
    remarks: list[Remark] = field(default_factory=list)

    def only(self, position: int) -> int:
        """Tasks that this side completed and that are not compared."""
        return len(self.sides[position].tasks) - len(self.shared)


def compare(session: Session, sides: Sequence[Side]) -> Comparison:
    """Pair the tasks that all sides completed; failed rollouts take no part. With an obstacle nothing is read."""
    if blocked := obstacles(sides):
        return Comparison([], [], [], remarks=blocked)
    found = [scores(session, side) for side in sides]
    shared = sorted(set(found[0].tasks).intersection(*(each.tasks for each in found[1:])))
    if not shared:
        counts = ", ".join(f"{each.side.label} {len(each.tasks):,}" for each in found)
        empty = Remark(f"No task was completed on both sides ({counts}).", is_blocking=True)
        return Comparison(found, [], [], remarks=[empty])
    rewards = [each.rows(shared)[:, -1] for each in found]
    return Comparison(
        found,
        shared,
        [estimate_mean(reward) for reward in rewards],
        [_pairing(found[0], other, shared) for other in found[1:]],
        [[_duel(row, column) for column in rewards] for row in rewards],
        remarks(found, shared),
    )


def task_pairs(session: Session, found: Comparison, pairing: Pairing, positions: Sequence[int]) -> list[TaskPair]:
    """These of the shared tasks with an example of either side."""
    keys = [found.shared[position] for position in positions]
    before, after = pairing.before, pairing.after
    rows = [(key, before.tasks[key], after.tasks[key]) for key in keys]
    example_before = first_rollouts(session, before.side, [before.task_ids[row] for _, row, _ in rows])
    example_after = first_rollouts(session, after.side, [after.task_ids[row] for _, _, row in rows])
    return [
        TaskPair(
            after.task_ids[other],
            key.number,
            after.levels[other],
            before.values[one].tolist(),
            after.values[other].tolist(),
            example_before[before.task_ids[one]],
            example_after[after.task_ids[other]],
        )
        for key, one, other in rows
    ]


def _pairing(before: Scores, after: Scores, shared: Sequence[TaskKey]) -> Pairing:
    import numpy as np

    values_before, values_after = before.rows(shared), after.rows(shared)
    differences = values_after[:, -1] - values_before[:, -1]
    levels = np.array([after.levels[after.tasks[key]] for key in shared])
    return Pairing(
        before,
        after,
        _columns(before.side, after.side, values_before, values_after),
        [_level(level, levels == level, values_before[:, -1], values_after[:, -1]) for level in np.unique(levels)],
        paired_test(values_before[:, -1], values_after[:, -1]),
        np.argsort(-differences, kind="stable"),
        differences,
    )


def _columns(
    before: Side, after: Side, values_before: NDArray[np.float64], values_after: NDArray[np.float64]
) -> list[ColumnDifference]:
    """The reward, then the columns that both sides have."""
    weights = dict(zip(after.run.columns, after.run.weights, strict=False))
    places: list[tuple[str, float | None, int, int]] = [(REWARD, None, -1, -1)]
    places += [
        (name, weights.get(name), before.run.columns.index(name), position)
        for position, name in enumerate(after.run.columns)
        if name in before.run.columns
    ]
    found = []
    for name, weight, one, other in places:
        first, second = values_before[:, one], values_after[:, other]
        means, difference = (estimate_mean(first), estimate_mean(second)), paired_difference(first, second)
        if means[0] and means[1] and difference:
            found.append(ColumnDifference(name, weight, means[0], means[1], difference))
    return found


def _level(
    level: int, at: NDArray[np.bool_], before: NDArray[np.float64], after: NDArray[np.float64]
) -> LevelDifference:
    difference = paired_difference(before[at], after[at])
    assert difference is not None  # a level is there because a task has it
    return LevelDifference(int(level), int(at.sum()), float(before[at].mean()), float(after[at].mean()), difference)


def _duel(row: NDArray[np.float64], column: NDArray[np.float64]) -> Duel:
    wins, losses = int((row - column > TIE).sum()), int((column - row > TIE).sum())
    return Duel(wins, losses, len(row) - wins - losses)
