"""A detector's view of a run: figures of every step so far, and the rollouts of the newest ones."""

import statistics
import uuid
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from backend.domain.detectors.context import BaseTask, EnvironmentContext
from backend.domain.results.pass_at_k import REWARD, SuccessRule
from backend.domain.rollouts.rollout import CANARY, Rollout
from backend.domain.vocabulary import StopReason

RECENT_STEPS = 5
"""Steps whose rollouts are kept, and over which the present is averaged."""
BASE_STEPS = 10
"""Steps at the beginning that the present is compared with."""
SAME_REWARD = 1e-6
BROKEN_OFF = {StopReason.UNPARSABLE, StopReason.TOKEN_LIMIT}
"""Stop reasons of episodes that ended early because a reply could not be read or was cut."""


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """One completed rollout, as detectors read it."""

    id: uuid.UUID
    group: str
    task: str
    reward: float
    columns: Mapping[str, float]
    replies: tuple[str, ...]
    """The policy's replies, turn by turn."""
    tokens_out: int
    stop_reason: str | None
    actions: tuple[Mapping[str, Any] | None, ...] = ()
    """As parsed from the replies."""
    step_rewards: tuple[Mapping[str, float], ...] = ()
    """Reward columns of each step, where columns have a declared range."""
    prompts: tuple[str, ...] = ()
    """Messages to the policy, turn by turn, without the system prompt."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    second_reward: float | None = None
    """By another version of the reward, where the run was scored again."""
    second_columns: Mapping[str, float] = field(default_factory=dict)
    """By the same version."""
    environment: str = ""
    """In which it was played, where the run plays several."""

    @property
    def is_canary(self) -> bool:
        """Its task cannot be solved honestly."""
        return bool(self.metrics.get(CANARY))


@dataclass(frozen=True, slots=True)
class HeldoutResult:
    """Held-out tasks, played after a training step."""

    step: int
    reward: float
    error: float
    """Standard error of the mean."""


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
    """Share of episodes in which the policy wrote exactly the most common text."""
    passing: float = 0.0
    """Share of episodes that succeeded, if success is defined."""
    passing_tokens: float | None = None
    """Median of the tokens in those."""

    @property
    def without_variance(self) -> float:
        return self.all_good + self.all_bad


@dataclass(frozen=True, slots=True)
class CanaryFigures:
    """Impossible tasks of one step, in one environment or in all."""

    step: int
    played: int
    passed_ids: tuple[uuid.UUID, ...]
    environment: str = ""
    """Where the run plays several."""

    @property
    def passed(self) -> int:
        return len(self.passed_ids)


@dataclass(slots=True)
class RunView:
    """Grows step by step. Steps come in ascending order."""

    context: EnvironmentContext
    steps: list[StepFigures] = field(default_factory=list)
    recent: dict[int, list[RolloutRow]] = field(default_factory=dict)
    """Rollouts of the newest steps, by step."""
    heldout: list[HeldoutResult] = field(default_factory=list)
    canaries: list[CanaryFigures] = field(default_factory=list)
    """Figures of the steps with canaries, by environment if there are several. No other figure counts them."""
    outcomes: dict[str, BaseTask] = field(default_factory=dict)
    """Results of each task: of a whole evaluation, or of the newest steps of a training run."""
    verdicts: Counter[tuple[bool, bool]] = field(default_factory=Counter)
    """(passes, passes by the second verifier), where there is one."""

    def add(self, step: int, rows: Sequence[RolloutRow]) -> None:
        """Add a step. One without completed rollouts is ignored."""
        played: defaultdict[str, list[RolloutRow]] = defaultdict(list)
        for row in rows:
            if row.is_canary and rule_of(self.context, row) is not None:
                played[row.environment].append(row)
        for environment, own in sorted(played.items()):
            passed = tuple(row.id for row in own if passes_trap(self.context, row))
            self.canaries.append(CanaryFigures(step, len(own), passed, environment))
        rows = [row for row in rows if not row.is_canary]
        if not rows:
            return
        self.steps.append(figures_of(step, rows, self.context))
        self.recent[step] = rows
        for old in sorted(self.recent)[:-RECENT_STEPS]:
            del self.recent[old]
        if self.context.has_steps:
            self.outcomes, rows = {}, [row for kept in self.recent.values() for row in kept]
            self.verdicts = Counter()
        for row in rows:
            known = self.outcomes.get(row.task, BaseTask(0, 0))
            has_passed = passes(self.context, row)
            self.outcomes[row.task] = BaseTask(known.plays + 1, known.passes + has_passed)
            if (has_passed_second := passes_second(self.context, row)) is not None:
                self.verdicts[has_passed, has_passed_second] += 1

    @property
    def newest(self) -> list[RolloutRow]:
        return self.recent[self.steps[-1].step] if self.steps else []

    def base(self) -> list[StepFigures]:
        return self.steps[:BASE_STEPS]

    def present(self) -> list[StepFigures]:
        return self.steps[-RECENT_STEPS:]

    def has_past(self) -> bool:
        """Whether there are enough steps to compare the present with the beginning."""
        return len(self.steps) >= BASE_STEPS + RECENT_STEPS


def row_of(id_: uuid.UUID, rollout: Rollout, environment: str = "") -> RolloutRow | None:
    """None for a failed rollout, which says nothing about the policy."""
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
        actions=tuple(step.action for step in rollout.steps),
        step_rewards=tuple(step.rewards for step in rollout.steps),
        prompts=tuple(
            str(message.get("content") or "") for message in rollout.messages if message["role"] in {"user", "tool"}
        ),
        metrics=rollout.metrics,
        environment=environment,
    )


def passes(context: EnvironmentContext, row: RolloutRow) -> bool:
    """Whether the rollout succeeds; false if success is not defined."""
    return _meets(context.success, row)


def passes_second(context: EnvironmentContext, row: RolloutRow) -> bool | None:
    """Whether it succeeds by the second verifier's rule. None if not scored by it, or if success is not defined."""
    if row.second_reward is None or context.success is None:
        return None
    rule = context.second.success if context.second else context.success
    return _meets(rule, replace(row, reward=row.second_reward, columns=row.second_columns))


def rule_of(context: EnvironmentContext, row: RolloutRow) -> SuccessRule | None:
    """The success rule of the rollout's own environment."""
    return context.rules.get(row.environment) if context.rules else context.success


def passes_trap(context: EnvironmentContext, row: RolloutRow) -> bool:
    """Whether the rollout succeeds by the rule of its own environment."""
    return _meets(rule_of(context, row), row)


def _meets(rule: SuccessRule | None, row: RolloutRow) -> bool:
    if rule is None:
        return False
    value = row.reward if rule.column == REWARD else row.columns.get(rule.column, 0.0)
    return value >= rule.at_least - SAME_REWARD


def figures_of(step: int, rows: Sequence[RolloutRow], context: EnvironmentContext) -> StepFigures:
    reward = statistics.fmean(row.reward for row in rows)
    groups = defaultdict(list)
    for row in rows:
        groups[row.group].append(row.reward)
    several = [rewards for rewards in groups.values() if len(rewards) > 1]
    flat = [rewards[0] for rewards in several if max(rewards) - min(rewards) <= SAME_REWARD]
    good = sum(value > reward for value in flat)
    [(_, commonest)] = Counter(row.replies for row in rows).most_common(1)
    passing = [row.tokens_out for row in rows if passes(context, row)]
    return StepFigures(
        step=step,
        count=len(rows),
        reward=reward,
        columns={name: statistics.fmean(row.columns.get(name, 0.0) for row in rows) for name in context.columns},
        tokens=statistics.fmean(row.tokens_out for row in rows),
        turns=statistics.fmean(len(row.replies) for row in rows),
        unparsable=sum(row.stop_reason in BROKEN_OFF for row in rows) / len(rows),
        groups=len(several),
        all_good=good / len(several) if several else 0.0,
        all_bad=(len(flat) - good) / len(several) if several else 0.0,
        commonest=commonest / len(rows),
        passing=len(passing) / len(rows),
        passing_tokens=statistics.median(passing) if passing else None,
    )
