"""The environment version under examination: a running server, and the rollouts that were played on it so far."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from backend.domain.manifest import Manifest
from backend.domain.rollouts import Rollout, TaskSpec, task_of
from backend.domain.vocabulary import Phase, Split
from workers.environments.client import EnvServer, EnvSession, Observation
from workers.judging.checks.policies import POLICIES
from workers.rollouts.engine import GroupPlan, OnRollout, TooManyFailures, play_groups

CONCURRENCY = 16
PER_LEVEL = 24
EPISODES_AT_MOST = 240
"""Of one policy, over all levels."""
GROUPS_PER_POLICY = 10_000
"""Ordinals of groups that are reserved for one policy, so that a repeated check meets its first rollouts."""


@dataclass(slots=True)
class Subject:
    """What checks look at. Rollouts are played once a policy and shared by the checks."""

    manifest: Manifest
    server: EnvServer
    seed: int = 0
    on_rollout: OnRollout = lambda rollout: None
    """Told of every rollout as it ends, failed ones included."""
    should_stop: Callable[[], bool] = lambda: False
    _played: dict[str, list[Rollout]] = field(default_factory=dict)

    @property
    def timeout(self) -> float:
        return self.manifest.proctor.episode.step_timeout_seconds

    @property
    def levels(self) -> int:
        return self.manifest.proctor.tasks.levels

    def tasks(self, per_level: int) -> list[TaskSpec]:
        """Held-out tasks, as many of each level."""
        per_level = max(2, min(per_level, EPISODES_AT_MOST // self.levels))
        count = min(per_level * self.levels, self.manifest.proctor.tasks.heldout)
        return [task_of(self.manifest, Split.HELDOUT, index) for index in range(count)]

    async def rollouts(self, policy: str, per_level: int = PER_LEVEL) -> list[Rollout]:
        """Rollouts of one of POLICIES on held-out tasks, in the order of the tasks; played when first asked for."""
        if policy not in self._played:
            self._played[policy] = await self._play(policy, self.tasks(per_level))
        return self._played[policy]

    async def completed(self, policy: str, per_level: int = PER_LEVEL) -> list[Rollout]:
        return [rollout for rollout in await self.rollouts(policy, per_level) if rollout.is_completed]

    def all_rollouts(self) -> list[Rollout]:
        """All completed rollouts so far."""
        return [rollout for played in self._played.values() for rollout in played if rollout.is_completed]

    def played(self) -> Mapping[str, list[Rollout]]:
        """Rollouts by policy, failed ones included."""
        return self._played

    async def replay(self, session: EnvSession, task: TaskSpec, actions: Sequence[dict[str, Any]]) -> list[Observation]:
        """The answers to a reset and to these actions, up to the end of the episode."""
        opening = await session.reset(task.reset_arguments(), timeout=self.timeout)
        return [opening, *await self.go_on(session, opening, actions)]

    async def go_on(
        self, session: EnvSession, newest: Observation, actions: Sequence[dict[str, Any]]
    ) -> list[Observation]:
        answers: list[Observation] = []
        for action in actions:
            if newest.done:
                break
            newest = await session.step(action, timeout=self.timeout)
            answers.append(newest)
        return answers

    async def _play(self, policy: str, tasks: list[TaskSpec]) -> list[Rollout]:
        first = list(POLICIES).index(policy) * GROUPS_PER_POLICY
        rollouts: list[Rollout] = []

        def keep(rollout: Rollout) -> Awaitable[None] | None:
            rollouts.append(rollout)
            return self.on_rollout(rollout)

        with suppress(TooManyFailures):  # those that failed are there to be looked at
            await play_groups(
                [GroupPlan(task, first + number, (0,)) for number, task in enumerate(tasks)],
                server=self.server,
                policy=POLICIES[policy](),
                manifest=self.manifest,
                phase=Phase.CHECK,
                seed=self.seed,
                concurrency=CONCURRENCY,
                on_rollout=keep,
                should_stop=self.should_stop,
                max_attempts=1,  # a failure is what a check looks for
            )
        return sorted(rollouts, key=lambda rollout: rollout.group)


def actions_of(rollout: Rollout) -> list[dict[str, Any]]:
    """The actions that reached the environment."""
    return [step.action for step in rollout.steps if step.action is not None and step.note is None]
