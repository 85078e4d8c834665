"""One episode as data: the task, its steps, its messages and its reward columns."""

import hashlib
import math
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from backend.domain.environments.manifest import MAX_SEATS, Manifest, OverEpisode, RewardColumn
from backend.domain.vocabulary import ErrorKind, Phase, RolloutStatus, Split, StopReason

MAX_NAMES = 200
"""Reward columns or metrics of one rollout."""
Number = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
SeatName = Annotated[str, Field(max_length=40)]
MAX_MESSAGES = 10_000
MAX_STEPS = 10_000
HELDOUT_SEED_BASE = 10_000_000
"""Held-out and training tasks have different seeds."""
CANARY = "canary"
"""Reset argument of an unsolvable task, and metric of its rollouts."""


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """One task of an environment: the reset arguments, and nothing that the agent must not see."""

    split: Split
    index: int
    level: int
    seed: int
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Additional reset arguments of the package."""
    version_id: uuid.UUID | None = None
    """The environment version, if the run plays several. None: the run's own."""

    @property
    def key(self) -> str:
        return f"{self.split}/{self.index}"

    @property
    def is_canary(self) -> bool:
        """No honest policy can solve it."""
        return self.arguments.get(CANARY) is True

    def reset_arguments(self) -> dict[str, Any]:
        return {"seed": self.seed, "split": str(self.split), "level": self.level, "index": self.index, **self.arguments}


def task_of(
    manifest: Manifest, split: Split, index: int, seed: int | None = None, level: int | None = None
) -> TaskSpec:
    """Task `index` of a split. Unless given, levels alternate and the seed follows from the index."""
    if seed is None:
        seed = index + (HELDOUT_SEED_BASE if split is Split.HELDOUT else 0)
    return TaskSpec(split, index, index % manifest.proctor.tasks.levels if level is None else level, seed)


def drawn_task(manifest: Manifest, split: Split, index: int) -> TaskSpec:
    """The task for training and evaluation: a fixed share of the tasks are canaries, the same ones in every run.

    Only the reset argument distinguishes them.
    """
    task = task_of(manifest, split, index)
    digest = hashlib.sha256(f"canary:{task.split}:{task.index}:{task.seed}".encode()).digest()
    if int.from_bytes(digest[:8]) / 2**64 >= manifest.proctor.tasks.canaries:
        return task
    return replace(task, arguments={**task.arguments, CANARY: True})


@dataclass(slots=True)
class Step:
    """One turn: the reply, the parsed action and the environment's answer."""

    reply: str
    """The policy's text, as written."""
    action: dict[str, Any] | None = None
    """The parsed action; None if the reply could not be parsed."""
    observation: dict[str, Any] = field(default_factory=dict)
    """The environment's observation, bounded in size (see `workers.rollouts`)."""
    text: str = ""
    """The observation as the policy reads it; empty after the last step."""
    rewards: Annotated[dict[Name, Number], Field(max_length=MAX_NAMES)] = field(default_factory=dict)
    """Reward columns of this step, as the environment sent them."""
    done: bool = False
    note: str | None = None
    """Why an action was refused, as the policy reads it."""
    policy_seconds: Seconds = 0.0
    environment_seconds: Seconds = 0.0
    queue_seconds: Seconds = 0.0
    """Time waiting for a slot at the policy and between retries; not part of `policy_seconds`."""
    tokens_in: int | None = None
    """Tokens that the policy read for this reply; None if they are unknown."""
    tokens_out: int | None = None
    tokens_cached: int | None = None
    """Part of `tokens_in` that came from the endpoint's cache."""
    cost: Number | None = None
    """US dollars of this reply; None if the policy has no price."""
    calls: list[dict[str, Any]] | None = None
    """Several tool calls of one reply, each `{action, is_made, note, text, rewards, done}`. The step itself then holds
    the first action, the last observation and the rewards of all calls."""


@dataclass(slots=True)
class SeatPlay:
    """What another seat did in the same episode."""

    seat: SeatName
    policy: Annotated[str, Field(max_length=400)]
    """The name of the policy, with its checkpoint if it is one."""
    columns: Annotated[dict[Name, Number], Field(max_length=MAX_NAMES)] = field(default_factory=dict)
    reward: Number | None = None
    stop_reason: StopReason | None = None
    steps: Annotated[list[Step], Field(max_length=MAX_STEPS)] = field(default_factory=list)
    """Its turns, as it saw the episode."""
    messages: Annotated[list[dict[str, Any]], Field(max_length=MAX_MESSAGES)] = field(default_factory=list)
    tokens_in: int = 0
    tokens_out: int = 0
    cost: Number | None = None
    tokens: dict[str, Any] | None = None
    """{prompt, completion, mask, logprobs} if the policy reports them."""


@dataclass(slots=True)
class Seats:
    """The seats of an episode that several policies played. The rollout itself holds the turns of `seat`."""

    seat: SeatName
    """The seat of the rollout's own policy."""
    others: Annotated[list[SeatPlay], Field(max_length=MAX_SEATS - 1)] = field(default_factory=list)
    order: Annotated[list[SeatName], Field(max_length=MAX_SEATS * MAX_STEPS)] = field(default_factory=list)
    """The seat of each action that the environment took, in their order."""
    score: Number | None = None
    """1: the rollout's seat won. 0.5: a draw. 0: another seat won. None: the episode failed."""


@dataclass(slots=True)
class Rollout:
    """The stored record of one episode. `reward` is None unless the status is `completed`."""

    task: TaskSpec
    phase: Phase
    group: int
    """Index of the group within its run and training step."""
    member: int
    """Index within the group."""
    status: RolloutStatus
    stop_reason: StopReason | None = None
    error_kind: ErrorKind | None = None
    error_message: str | None = None
    attempts: int = 1
    reward: float | None = None
    columns: dict[str, float] = field(default_factory=dict)
    """Value over the episode by reward column."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Unweighted numbers."""
    opening: dict[str, Any] = field(default_factory=dict)
    """The observation of reset."""
    steps: list[Step] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    """The conversation: {"role", "content"} in order. A reply may have `reasoning`, which is not part of its content;
    the answer to several calls has `results`. If the context is limited, the policy saw only a part."""
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0
    """Part of `tokens_in` that came from the endpoint's cache."""
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
    """Tokens of all replies as text, from endpoints that report no ids."""
    token_turns: list[int] | None = None
    """Index in `token_texts` at which each reply begins."""
    advantage: float | None = None
    turn_advantages: list[float] | None = None
    """By turn, if credit is assigned by turn."""
    training_step: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    policy_seconds: float = 0.0
    environment_seconds: float = 0.0
    queue_seconds: float = 0.0
    """Time waiting for a slot at the policy or the environment, and between retries."""
    cost: float | None = None
    """US dollars of all attempts; None if the policy has no price."""
    source_id: uuid.UUID | None = None
    """The rollout that was regraded or replayed."""
    seats: Seats | None = None
    """None: one policy played the episode."""

    @property
    def tokens(self) -> dict[str, Any] | None:
        """The tokens as they are stored: {prompt, completion, mask, logprobs}, {texts, logprobs, turns}, or None."""
        if self.token_texts is not None:
            return {"texts": self.token_texts, "logprobs": self.logprobs, "turns": self.token_turns}
        if self.completion_token_ids is None:
            return None
        ids = {"prompt": self.prompt_token_ids, "completion": self.completion_token_ids}
        credit = {} if self.turn_advantages is None else {"turn_advantages": self.turn_advantages}
        return {**ids, "mask": self.completion_mask, "logprobs": self.logprobs, **credit}

    @property
    def is_completed(self) -> bool:
        return self.status is RolloutStatus.COMPLETED

    @property
    def counted_phase(self) -> Phase:
        """The phase for statistics: canaries are counted separately, in whatever phase they were played."""
        return Phase.CANARY if self.task.is_canary else self.phase


def turns_of(step: Mapping[str, Any]) -> int:
    """Turns that a stored step took: one, or one for each call that reached the environment."""
    return max(1, sum(bool(call["is_made"]) for call in step.get("calls") or ()))


def columns_over_episode(columns: Iterable[RewardColumn], steps: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Fold each column's step values over the episode by sum, last or max, as the manifest declares; 0 without any."""
    rows = list(steps)
    folded = {}
    for column in columns:
        values = [row[column.name] for row in rows if column.name in row] or [0.0]
        match column.over_episode:
            case OverEpisode.SUM:
                folded[column.name] = math.fsum(values)
            case OverEpisode.LAST:
                folded[column.name] = values[-1]
            case OverEpisode.MAX:
                folded[column.name] = max(values)
    return folded


def weighted_reward(columns: Iterable[RewardColumn], values: Mapping[str, float]) -> float:
    return math.fsum(column.weight * values.get(column.name, 0.0) for column in columns)
