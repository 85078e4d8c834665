"""A run as detectors see it: figures of every step so far, and the rollouts of the newest ones."""

import statistics
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from backend.domain.rollouts import Rollout
from backend.domain.vocabulary import StopReason

RECENT_STEPS = 5
"""Steps whose rollouts are kept, and over which the present is averaged."""
BASE_STEPS = 10
"""Steps at the beginning that the present is compared with."""
SAME_REWARD = 1e-6


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """What detectors need of one completed rollout."""

    id: uuid.UUID
    group: str
    task: str
    reward: float
    columns: Mapping[str, float]
    replies: tuple[str, ...]
    """What the policy wrote, turn by turn."""
    tokens_out: int
    stop_reason: str | None


@dataclass(frozen=True, slots=True)
class StepFigures:
    """Means over the completed rollouts of one step."""

    step: int
    count: int
    reward: float
    columns: Mapping[str, float]
    tokens: float
    """Tokens that the policy wrote in an episode."""
    turns: float
    unparsable: float
    """Share of episodes that ended because a reply could not be read or was cut."""
    groups: int
    """Groups of several rollouts."""
    all_good: float
    """Share of those groups whose rewards are all equal and above the step's mean."""
    all_bad: float
    """Share of those groups whose rewards are all equal and not above it."""
    commonest: float
    """Share of episodes in which the policy wrote exactly the commonest text."""

    @property
    def without_variance(self) -> float:
        return self.all_good + self.all_bad


@dataclass(slots=True)
class RunView:
    """Grows step by step. Steps come in ascending order."""

    columns: tuple[str, ...]
    steps: list[StepFigures] = field(default_factory=list)
    recent: dict[int, list[RolloutRow]] = field(default_factory=dict)
    """Rollouts of the newest steps, by step."""

    def add(self, step: int, rows: Sequence[RolloutRow]) -> None:
        """A step that has no completed rollout says nothing."""
        if not rows:
            return
        self.steps.append(figures_of(step, rows, self.columns))
        self.recent[step] = list(rows)
        for old in sorted(self.recent)[:-RECENT_STEPS]:
            del self.recent[old]

    @property
    def newest(self) -> list[RolloutRow]:
        return self.recent[self.steps[-1].step] if self.steps else []

    def base(self) -> list[StepFigures]:
        return self.steps[:BASE_STEPS]

    def present(self) -> list[StepFigures]:
        return self.steps[-RECENT_STEPS:]

    def has_past(self) -> bool:
        """Are there steps enough to compare the present with the beginning?"""
        return len(self.steps) >= BASE_STEPS + RECENT_STEPS


def row_of(id_: uuid.UUID, rollout: Rollout) -> RolloutRow | None:
    """None for a rollout that failed: it says nothing about the policy."""
    if rollout.reward is None:
        return None
    return RolloutRow(
        id=id_,
        group=f"{rollout.phase}/{rollout.group}",
        task=rollout.task.key,
        reward=rollout.reward,
        columns=rollout.columns,
        replies=tuple(step.reply for step in rollout.steps),
        tokens_out=rollout.tokens_out,
        stop_reason=rollout.stop_reason,
    )


def figures_of(step: int, rows: Sequence[RolloutRow], columns: Iterable[str]) -> StepFigures:
    reward = statistics.fmean(row.reward for row in rows)
    groups = defaultdict(list)
    for row in rows:
        groups[row.group].append(row.reward)
    several = [rewards for rewards in groups.values() if len(rewards) > 1]
    flat = [rewards[0] for rewards in several if max(rewards) - min(rewards) <= SAME_REWARD]
    good = sum(value > reward for value in flat)
    broken_off = {StopReason.UNPARSABLE, StopReason.TOKEN_LIMIT}
    [(_, commonest)] = Counter(row.replies for row in rows).most_common(1)
    return StepFigures(
        step=step,
        count=len(rows),
        reward=reward,
        columns={name: statistics.fmean(row.columns.get(name, 0.0) for row in rows) for name in columns},
        tokens=statistics.fmean(row.tokens_out for row in rows),
        turns=statistics.fmean(len(row.replies) for row in rows),
        unparsable=sum(row.stop_reason in broken_off for row in rows) / len(rows),
        groups=len(several),
        all_good=good / len(several) if several else 0.0,
        all_bad=(len(flat) - good) / len(several) if several else 0.0,
        commonest=commonest / len(rows),
    )
