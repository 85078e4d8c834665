"""Tasks that a training run plays: for the warm-up, for each GRPO step and for held-out evaluations.

Everything is a function of the configuration and, in an adaptive curriculum, of the rollouts so far: a resumed run
plays what an uninterrupted run would have played.
"""

import json
import uuid
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import fsum
from pathlib import Path
from typing import Any

from sqlalchemy import select

from backend.core.session import transaction
from backend.domain.results.pass_at_k import SuccessRule
from backend.domain.rollouts.rollout import Rollout, TaskSpec
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.grpo import CurriculumChoice
from backend.domain.training.mix import portions
from backend.domain.vocabulary import OF_STEPS, Phase, RolloutStatus, Split
from backend.rollouts.tables import Group, Task
from backend.rollouts.tables import Rollout as RolloutRow
from backend.runs.tables import Run
from workers.rollouts.engine import GroupPlan
from workers.training.assignment import TrainingEnv
from workers.training.checkpoints import reached_step, replace_file
from workers.training.heldout_evaluation import rewards_of

MOST_DOUBLINGS = 6
Outcome = tuple[int, bool]  # level of a rollout, and whether it succeeded
State = dict[str, Any]  # state that later steps depend on, as JSON


@dataclass(slots=True)
class RoundRobin:
    """Smooth weighted round robin: any stretch of turns follows the shares as closely as whole numbers allow."""

    shares: Sequence[float]
    credit: Sequence[float] = ()

    def next(self) -> int:
        before = self.credit or [0.0] * len(self.shares)
        credit = [have + share for have, share in zip(before, self.shares, strict=True)]
        chosen = max(range(len(credit)), key=credit.__getitem__)
        credit[chosen] -= sum(self.shares)
        self.credit = credit
        return chosen


def single_plans(envs: Sequence[TrainingEnv], count: int, split: Split = Split.TRAIN) -> list[GroupPlan]:
    """Return single episodes on the first tasks of each environment by weight, levels in turn.

    The environments are mixed evenly, so that any prefix contains all of them. Training tasks repeat if there are few;
    held-out tasks come once.
    """
    counts = portions([env.weight for env in envs], count)
    if split is Split.HELDOUT:
        counts = [min(each, env.manifest.proctor.tasks.heldout) for each, env in zip(counts, envs, strict=True)]
    turns, taken, plans = RoundRobin(counts), [0] * len(envs), []
    for ordinal in range(sum(counts)):
        number = turns.next()
        plans.append(GroupPlan(envs[number].task(split, taken[number]), ordinal, (0,)))
        taken[number] += 1
    return plans


class AdaptiveLevels:
    """A window of levels (RLVE, arXiv:2511.07317). Its top rises when mastered and falls when success collapses.

    A level that the window fell from is tried again after `window` new episodes, then after twice that number, and so
    on: otherwise half of all steps would teach nothing while the level is too hard.
    """

    def __init__(self, choice: CurriculumChoice, count: int) -> None:
        self._choice, self._highest = choice, count - 1
        self._recent: dict[int, deque[bool]] = {}
        self._falls: dict[int, int] = {}  # falls from each level since it was last mastered
        self._move_to(min(choice.start, self._highest))

    def next(self) -> int:
        return self.low + self._turns.next()

    def learn(self, outcomes: Iterable[Outcome]) -> dict[str, float]:
        choice = self._choice
        for level, succeeded in outcomes:
            self._recent.setdefault(level, deque(maxlen=choice.window)).append(succeeded)
            self._played += level == self.high
        points = {"low": float(self.low), "high": float(self.high)}
        if recent_at_top := self._recent.get(self.high):
            points["success"] = sum(recent_at_top) / len(recent_at_top)
        latest = [self._recent.get(level, ()) for level in (self.high, self.high - 1)]
        # the success over a whole window of episodes; None if a level has fewer
        top, below = (sum(recent) / len(recent) if len(recent) == choice.window else None for recent in latest)
        falls = self._falls.get(self.high + 1, 0)
        is_ready = self._played >= choice.window << min(max(0, falls - 1), MOST_DOUBLINGS)
        if self.high > 0 and any(success is not None and success < choice.collapse for success in (top, below)):
            self._falls[self.high] = self._falls.get(self.high, 0) + 1
            self._move_to(self.high - 1)
        elif self.high < self._highest and top is not None and top >= choice.mastery and is_ready:
            self._falls.pop(self.high, None)
            self._move_to(self.high + 1)
        return points

    def _move_to(self, high: int, credit: Sequence[float] = ()) -> None:
        """Set the top. Only new episodes decide whether it is mastered."""
        self.high, self.low = high, max(0, high - self._choice.width + 1)
        self._played = 0
        self._recent = {level: recent for level, recent in self._recent.items() if self.low <= level < high}
        below, lower = high - self.low, self._choice.lower
        self._turns = RoundRobin([*[lower / below] * below, 1.0 - lower] if below else [1.0], credit)

    @property
    def state(self) -> State:
        return {
            "high": self.high,
            "credit": self._turns.credit,
            "recent": {str(level): "".join("01"[each] for each in recent) for level, recent in self._recent.items()},
            "played": self._played,
            "falls": {str(level): count for level, count in self._falls.items()},
        }

    def restore(self, state: State) -> None:
        self._move_to(state["high"], state["credit"])
        self._played = state["played"]
        self._falls = {int(level): count for level, count in state["falls"].items()}
        self._recent = {
            int(level): deque((each == "1" for each in recent), maxlen=self._choice.window)
            for level, recent in state["recent"].items()
        }


@dataclass(slots=True)
class _EnvTasks:
    """The order of tasks of one environment."""

    env: TrainingEnv
    levels: RoundRobin | AdaptiveLevels  # the same mix of levels in every step, or a window that moves
    rule: SuccessRule
    start: int  # tasks below this number belong to the warm-up
    used: list[int] = field(default_factory=list)  # number of tasks taken so far, by level


class Planner:
    """Chooses the groups of each GRPO step, and learns from the rollouts of each step in order."""

    def __init__(self, envs: Sequence[TrainingEnv], configuration: TrainingConfiguration) -> None:
        self.choice = configuration.grpo
        curriculum = configuration.curriculum
        self.is_adaptive = curriculum.kind == "adaptive"
        weights = [env.weight for env in envs]
        episodes = configuration.sft.episodes if configuration.recipe.has_sft else 0
        self._lanes = []
        for env, start in zip(envs, portions(weights, episodes), strict=True):
            count = env.manifest.proctor.tasks.levels
            shares = (self.choice.levels or [1.0] * count)[:count]
            levels = AdaptiveLevels(curriculum, count) if self.is_adaptive else RoundRobin(shares)
            rule = curriculum.rule(env.manifest)
            self._lanes.append(_EnvTasks(env, levels, rule, start + -start % count, [0] * count))
        self._turns = RoundRobin(weights)
        self._step = 0
        self._plans: dict[int, GroupPlan] = {}
        self._strata: list[tuple[_EnvTasks, int]] = []  # environment and level of each of the step's groups

    def plans(self, step: int, ordinals: Sequence[int] | None = None) -> list[GroupPlan]:
        """Return the step's groups with these ordinals. Default: all of its groups.

        Ordinals beyond the step's groups are replacements: they get a fresh task of the environment and level of the
        group with the same remainder by the number of groups.
        """
        count = self.choice.tasks_per_step
        ordinals = range(count) if ordinals is None else ordinals
        needed = list(ordinals)
        if step != self._step:
            self._step, self._plans = step, {}
            lanes = [self._lanes[self._turns.next()] for _ in range(count)]
            self._strata = [(lane, lane.levels.next()) for lane in lanes]
            needed = [*range(count), *ordinals]
        for ordinal in needed:
            if ordinal not in self._plans:
                lane, level = self._strata[ordinal % count]
                index = lane.start + level + lane.used[level] * len(lane.used)  # no task repeats while there are enough
                lane.used[level] += 1
                task = lane.env.task(Split.TRAIN, index, may_be_canary=True)
                self._plans[ordinal] = GroupPlan(task, ordinal, tuple(range(self.choice.group_size)))
        return [self._plans[ordinal] for ordinal in ordinals]

    def learn(self, step: int, rollouts: Iterable[Rollout]) -> dict[str, float]:
        """Take in everything the step played. Return points of curves: level windows, rewards by environment."""
        counted = (each for each in rollouts if each.is_completed and not each.task.is_canary)
        ordered = sorted(counted, key=lambda each: (each.group, each.member))
        points: dict[str, float] = {}
        for lane in self._lanes:
            own = [rollout for rollout in ordered if rollout.task.version_id == lane.env.tag]
            if (rewards := rewards_of(own)) and len(self._lanes) > 1:
                points[f"environment/{lane.env.name}"] = fsum(rewards) / len(rewards)
            if isinstance(lane.levels, AdaptiveLevels):
                outcomes = [(each.task.level, lane.rule.is_met(each.reward, each.columns)) for each in own]
                levels = lane.levels.learn(outcomes)
                points |= {f"curriculum/{lane.env.name}/{name}": value for name, value in levels.items()}
        return points

    @property
    def state(self) -> State:
        lanes = []
        for lane in self._lanes:
            levels = lane.levels.state if isinstance(lane.levels, AdaptiveLevels) else {"credit": lane.levels.credit}
            lanes.append({"used": list(lane.used), "levels": levels})
        return {"environments": self._turns.credit, "lanes": lanes}

    def restore(self, state: State) -> None:
        self._turns = RoundRobin(self._turns.shares, state["environments"])
        for lane, kept in zip(self._lanes, state["lanes"], strict=True):
            lane.used = list(kept["used"])
            if isinstance(lane.levels, AdaptiveLevels):
                lane.levels.restore(kept["levels"])
            else:
                lane.levels = RoundRobin(lane.levels.shares, kept["levels"]["credit"])


def save_plan(folder: Path, step: int, planner: Planner) -> None:
    """Save the planner's state next to the trainer's states, and delete those older than the trainer's newest."""
    plans = folder / "plans"
    replace_file(plans / f"{step}.json", json.dumps(planner.state))
    needed = reached_step(folder, planner.choice.updates)
    for path in plans.glob("*.json"):
        if int(path.stem) < needed:
            path.unlink()


def replay(planner: Planner, run_id: uuid.UUID, last: int) -> None:
    """Bring a new planner to its state after step `last` of a run, from the run's stored rollouts."""
    stored: dict[int, list[Rollout]] = {}
    if planner.is_adaptive or planner.choice.replace_uniform:
        of_run = (RolloutRow.run_id == run_id, RolloutRow.phase.in_(OF_STEPS), RolloutRow.training_step <= last)
        statement = (
            select(RolloutRow.training_step, RolloutRow.member, RolloutRow.reward, RolloutRow.columns, Group, Task)
            .join(Group, Group.id == RolloutRow.group_id)
            .join(Task, Task.id == Group.task_id)
            .where(*of_run, RolloutRow.status == RolloutStatus.COMPLETED)
            .order_by(RolloutRow.training_step, Group.ordinal, RolloutRow.member)
        )
        with transaction() as session:
            run = session.get_one(Run, run_id)
            for row in session.execute(statement):
                task: Task = row.Task
                tag = None if task.version_id == run.version_id else task.version_id
                stored.setdefault(row.training_step, []).append(
                    Rollout(
                        task=TaskSpec(task.split, task.index, task.level, task.seed, task.arguments, tag),
                        phase=Phase.TRAIN,
                        group=row.Group.ordinal,
                        member=row.member,
                        status=RolloutStatus.COMPLETED,
                        reward=row.reward,
                        columns=dict(zip(run.columns, row.columns, strict=True)),
                    )
                )
    for step in range(1, last + 1):
        rollouts = stored.get(step, [])
        planner.plans(step, sorted({rollout.group for rollout in rollouts}))
        planner.learn(step, rollouts)
