"""One episode as data: the task, its steps, its messages and its reward columns."""

import hashlib
import math
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from backend.domain.environments.manifest import Manifest, OverEpisode, RewardColumn
from backend.domain.vocabulary import ErrorKind, Phase, RolloutStatus, Split, StopReason

HELDOUT_SEED_BASE = 10_000_000
"""Held-out tasks never share a seed with training tasks."""
CANARY = "canary"
"""Reset argument of a task that cannot be solved, and metric of its rollouts."""


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """One problem of an environment: the reset arguments and nothing that the agent may not see."""

    split: Split
    index: int
    level: int
    seed: int
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further reset arguments, for packages that take them."""
    version_id: uuid.UUID | None = None
    """The environment version that asks it, where a run plays several; None: the run's own."""

    @property
    def key(self) -> str:
        return f"{self.split}/{self.index}"

    @property
    def is_canary(self) -> bool:
        """Nobody can pass it honestly."""
        return self.arguments.get(CANARY) is True

    def reset_arguments(self) -> dict[str, Any]:
        return {"seed": self.seed, "split": str(self.split), "level": self.level, "index": self.index, **self.arguments}


def task_of(manifest: Manifest, split: Split, index: int, seed: int | None = None) -> TaskSpec:
    """Task number `index` of a split: levels take turns, the seed follows the index. A given seed replaces it."""
    base = HELDOUT_SEED_BASE if split is Split.HELDOUT else 0
    return TaskSpec(split, index, index % manifest.proctor.tasks.levels, base + index if seed is None else seed)


def drawn_task(manifest: Manifest, split: Split, index: int) -> TaskSpec:
    """The same where policies are trained and evaluated: a share of the tasks are canaries, everywhere the same ones.
    Nothing but the flag of the reset tells them apart."""
    task = task_of(manifest, split, index)
    if _lot(task) >= manifest.proctor.tasks.canaries:
        return task
    return replace(task, arguments={**task.arguments, CANARY: True})


def _lot(task: TaskSpec) -> float:
    """A number in [0, 1) that the task decides."""
    digest = hashlib.sha256(f"canary:{task.split}:{task.index}:{task.seed}".encode()).digest()
    return int.from_bytes(digest[:8]) / 2**64


@dataclass(slots=True)
class Step:
    """One turn: what the policy wrote, how it was understood, and what the environment answered."""

    reply: str
    """The policy's text, as written."""
    action: dict[str, Any] | None
    """The parsed action; None when the reply could not be parsed."""
    observation: dict[str, Any]
    """What the environment returned (bounded in size; see `workers.rollouts`)."""
    text: str
    """The observation as the policy reads it; empty after the last step."""
    rewards: dict[str, float]
    """Reward columns of this step, as the environment sent them."""
    done: bool
    note: str | None = None
    """Why an action was not taken, in the words told to the policy."""
    policy_seconds: float = 0.0
    environment_seconds: float = 0.0
    queue_seconds: float = 0.0
    """Waited for a place at the policy, and between its tries; no part of `policy_seconds`."""
    calls: list[dict[str, Any]] | None = None
    """Where a reply made several tool calls: each `{action, is_made, note, text, rewards, done}` in their order. The
    step's own fields then hold the first action, the last observation and the rewards of all."""


@dataclass(slots=True)
class Rollout:
    """The stored record of one episode. `reward` is None unless the status is `completed`."""

    task: TaskSpec
    phase: Phase
    group: int
    """Ordinal of the group inside its run and training step."""
    member: int
    """Ordinal inside the group."""
    status: RolloutStatus
    stop_reason: StopReason | None = None
    error_kind: ErrorKind | None = None
    error_message: str | None = None
    attempts: int = 1
    reward: float | None = None
    columns: dict[str, float] = field(default_factory=dict)
    """Value over the episode by column name; keys are the manifest's columns."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Numbers that carry no weight."""
    opening: dict[str, Any] = field(default_factory=dict)
    """The observation of reset."""
    steps: list[Step] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    """The conversation: {"role", "content"} in order. A reply may carry `reasoning`, which is no part of its content;
    what the environment answered to several calls, `results`. Where the context is limited, the policy saw a part."""
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0
    """Of `tokens_in`: read from the endpoint's cache."""
    is_truncated: bool = False
    """A reply was cut at its token limit."""
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    """All tokens after the first prompt, the environment's included (see `completion_mask`)."""
    completion_mask: list[int] | None = None
    """1 where the policy wrote the token, 0 where the environment did."""
    logprobs: list[float] | None = None
    """Natural log-probabilities of completion tokens, or of `token_texts`; 0.0 where the mask is 0."""
    token_texts: list[str] | None = None
    """The tokens of all replies as text, from endpoints that tell no ids."""
    token_turns: list[int] | None = None
    """Where in `token_texts` each reply begins."""
    advantage: float | None = None
    turn_advantages: list[float] | None = None
    """By turn, where credit is given by turn."""
    training_step: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    policy_seconds: float = 0.0
    environment_seconds: float = 0.0
    queue_seconds: float = 0.0
    """Waited for a place at the policy or the environment, and for retries."""
    cost: float | None = None
    """US dollars of all attempts; None where the policy has no price."""
    source_id: uuid.UUID | None = None
    """The rollout that was re-scored or replayed."""

    @property
    def is_completed(self) -> bool:
        return self.status is RolloutStatus.COMPLETED

    @property
    def counted_phase(self) -> Phase:
        """Among which rollouts it counts: the phase it was played in, but for canaries, whatever played them."""
        return Phase.CANARY if self.task.is_canary else self.phase


def turns_of(step: Mapping[str, Any]) -> int:
    """How many of an episode's turns a stored step took: one, or one for each call that reached the environment."""
    return max(1, sum(bool(call["is_made"]) for call in step.get("calls") or ()))


def columns_over_episode(columns: Iterable[RewardColumn], steps: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Fold each column's step values over the episode: sum, last or max, as the manifest says."""
    rows = list(steps)
    folded = {}
    for column in columns:
        values = [row[column.name] for row in rows if column.name in row]
        folded[column.name] = _fold(column.over_episode, values)
    return folded


def _fold(how: OverEpisode, values: list[float]) -> float:
    if not values:
        return 0.0
    match how:
        case OverEpisode.SUM:
            return math.fsum(values)
        case OverEpisode.LAST:
            return values[-1]
        case OverEpisode.MAX:
            return max(values)


def weighted_reward(columns: Iterable[RewardColumn], values: Mapping[str, float]) -> float:
    """The reward: the weighted sum of its columns."""
    return math.fsum(column.weight * values.get(column.name, 0.0) for column in columns)
