"""An environment inside the test process, with the shape of `workers.environments.client`: counting to a target.

The reply `<move>1</move>` or `<move>2</move>` adds that much; reaching the target exactly wins. Its `Trouble`
represents the failures of real environments and networks.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from backend.domain.environments.manifest import Manifest
from backend.domain.errors import ActionRefused, EnvError
from backend.domain.rollouts.rollout import Rollout, TaskSpec, task_of
from backend.domain.vocabulary import Phase, Split
from workers.environments.client import Observation
from workers.policies.base import EpisodeStart, Policy, Reply, TokenTrace, Turn
from workers.rollouts.engine import GroupPlan, RolloutPool

SCHEMA = {
    "type": "object",
    "properties": {"add": {"type": "integer", "minimum": 1, "maximum": 2}, "metadata": {"type": "object"}},
}


@dataclass(slots=True)
class Trouble:
    """What goes wrong, by task index."""

    failing_resets: dict[int, int] = field(default_factory=dict)
    """How many resets of the task fail before one succeeds."""
    hanging_steps: set[int] = field(default_factory=set)
    huge: set[int] = field(default_factory=set)
    silent: set[int] = field(default_factory=set)
    """Send no reward columns."""
    over_at_reset: set[int] = field(default_factory=set)
    step_seconds: float = 0.0


@dataclass(slots=True)
class World:
    """The server: hands out sessions and remembers what happened to them."""

    trouble: Trouble = field(default_factory=Trouble)
    sessions: int = 64
    action_schema: dict[str, Any] = field(default_factory=lambda: SCHEMA)
    opened: int = 0
    playing: int = 0
    most_playing: int = 0
    resets: list[dict[str, Any]] = field(default_factory=list)

    @asynccontextmanager
    async def session(self) -> AsyncIterator["WorldSession"]:
        self.opened += 1
        self.playing += 1
        self.most_playing = max(self.most_playing, self.playing)
        try:
            yield WorldSession(self)
        finally:
            self.playing -= 1


class WorldSession:
    def __init__(self, world: World) -> None:
        self.world = world
        self.index = self.target = self.total = 0

    async def reset(self, arguments: Mapping[str, Any], *, timeout: float) -> Observation:
        await asyncio.sleep(0)
        trouble = self.world.trouble
        self.world.resets.append(dict(arguments))
        self.index = arguments["index"]
        if trouble.failing_resets.get(self.index, 0) > 0:
            trouble.failing_resets[self.index] -= 1
            raise EnvError("reset: the dice are lost")
        self.target, self.total = 3 + arguments["seed"] % 4, 0
        return self._observe(done=self.index in trouble.over_at_reset)

    async def step(self, action: Mapping[str, Any], *, timeout: float) -> Observation:
        trouble = self.world.trouble
        if self.index in trouble.hanging_steps:
            await asyncio.sleep(60)
        await asyncio.sleep(trouble.step_seconds)
        if action.get("add") not in (1, 2):
            raise ActionRefused("step: add: Input should be 1 or 2")
        self.total += action["add"]
        rewards = {"win": float(self.total == self.target), "steps_taken": 1.0}
        return self._observe(done=self.total >= self.target, rewards={} if self.index in trouble.silent else rewards)

    async def state(self, *, timeout: float) -> dict[str, Any]:
        left = self.target - self.total
        return {"secret": self.target, "scripts": {"gold": f"<move>{min(left, 2)}</move>"}}

    def _observe(self, *, done: bool, rewards: dict[str, float] | None = None) -> Observation:
        fields: dict[str, Any] = {"total": self.total, "target": self.target, "legal": [1, 2]}
        if self.index in self.world.trouble.huge:
            fields["wall"] = "x" * 1_000_000
        return Observation(fields, None, done, {}, rewards or {})


def make_manifest(**proctor: Any) -> Manifest:
    agent = {
        "system": "Count.",
        "observation": "{{ total }} of {{ target }}",
        "action": {"format": "tag", "tag": "move", "field": "add", "type": "integer", "choices": "legal"},
        **proctor.pop("agent", {}),
    }
    block = {
        "agent": agent,
        "rewards": {"win": 1.0, "format": 0.2, "length": 0.0},
        "episode": {"max_turns": 8, "step_timeout_seconds": 0.3, "episode_timeout_seconds": 2.0},
        **proctor,
    }
    return Manifest.model_validate({"name": "counting", "proctor": block})


class Replies:
    """A policy that replies with these texts in turn, then the last one repeatedly, and records its prompts."""

    def __init__(self, *texts: str, seconds: float = 0.0, truncated: bool = False) -> None:
        self.texts, self.seconds, self.truncated = texts, seconds, truncated
        self.starts: list[EpisodeStart] = []
        self.seen: list[list[dict[str, Any]]] = []
        self.closed = 0

    async def begin(self, start: EpisodeStart) -> "_Speaker":
        self.starts.append(start)
        return _Speaker(self)

    async def aclose(self) -> None:
        """Nothing to close."""


class _Speaker:
    wants_scripts = False

    def __init__(self, policy: Replies) -> None:
        self.policy = policy

    async def act(self, turn: Turn) -> Reply:
        policy = self.policy
        await asyncio.sleep(policy.seconds)
        policy.seen.append([dict(message) for message in turn.messages])
        return Reply(policy.texts[min(turn.index, len(policy.texts) - 1)], 10, 4, policy.truncated)

    def trace(self) -> TokenTrace | None:
        return TokenTrace([1, 2], [3, 4], [1, 0], [-0.5, 0.0])

    def close(self) -> None:
        self.policy.closed += 1


def plans(count: int, members: int = 1, *, manifest: Manifest | None = None) -> list[GroupPlan]:
    manifest = manifest or make_manifest()
    return [GroupPlan(_task(manifest, index), index, tuple(range(members))) for index in range(count)]


def _task(manifest: Manifest, index: int) -> TaskSpec:
    return task_of(manifest, Split.TRAIN, index)


async def play(
    world: World, policy: Policy, groups: list[GroupPlan], manifest: Manifest | None = None, **options: Any
) -> list[Rollout]:
    """Play them; in the order of tasks and members."""
    found: list[Rollout] = []
    arguments = {"phase": Phase.EVALUATION, "seed": 7, "concurrency": 8, "on_rollout": found.append, **options}
    await RolloutPool(groups, server=world, policy=policy, manifest=manifest or make_manifest(), **arguments).play()  # type: ignore[arg-type]
    return sorted(found, key=lambda rollout: (rollout.group, rollout.member))
