"""One rollout in files. As JSON, one per line, it is the plain format, described in docs/exchange.md.

Only `messages` is required. A completed rollout has a reward, a failed one an error and never a reward.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model, field_validator, model_validator

from backend.domain.environments.manifest import Manifest
from backend.domain.ids import stable_id
from backend.domain.rollouts.conversation import steps_of
from backend.domain.rollouts.fields import MEASURED
from backend.domain.rollouts.rollout import (
    MAX_MESSAGES,
    MAX_NAMES,
    MAX_STEPS,
    Name,
    Number,
    Rollout,
    Seats,
    Seconds,
    Step,
    TaskSpec,
    task_of,
)
from backend.domain.vocabulary import ErrorKind, Phase, RolloutStatus, Split, StopReason

SCHEMA: Literal["proctor.rollout/1"] = "proctor.rollout/1"
MAX_ROLE = 32
MAX_INDEX = 2_000_000_000
Count = Annotated[int, Field(ge=0, le=2_000_000_000)]
Json = dict[str, Any]


class _Record(BaseModel):
    model_config = ConfigDict(extra="ignore")


class TaskRecord(_Record):
    split: Split | None = None
    index: int = Field(ge=0, le=MAX_INDEX)
    level: Annotated[int | None, Field(ge=0, le=10_000)] = None
    seed: Annotated[int | None, Field(ge=-(2**62), le=2**62)] = None
    arguments: Json = {}


class RewardRecord(_Record):
    score: Number
    weight: Number = 1.0


class ErrorRecord(_Record):
    """The reason for a missing reward."""

    kind: ErrorKind = ErrorKind.ENVIRONMENT
    message: str = Field(default="", max_length=100_000)


class TokensRecord(_Record):
    """Token ids with a mask that is 1 for the policy's tokens, or texts if the endpoint reports no ids."""

    prompt: list[int] | None = None
    completion: list[int] | None = None
    mask: list[Literal[0, 1]] | None = None
    logprobs: list[Number | None] | None = None
    texts: list[str] | None = None
    turns: list[int] | None = None
    turn_advantages: list[Number] | None = None

    @model_validator(mode="after")
    def _fit(self) -> "TokensRecord":
        tokens = self.texts if self.texts is not None else self.completion
        if tokens is None:
            raise ValueError("`completion` or `texts` is missing")
        for name in ("mask", "logprobs"):
            values = getattr(self, name)
            if values is not None and len(values) != len(tokens):
                raise ValueError(f"{len(values)} {name} for {len(tokens)} tokens")
        return self


_measured: dict[str, Any] = {name: (Count, 0) if field.is_whole else (Seconds, 0.0) for name, field in MEASURED.items()}
Measurements = create_model("Measurements", __base__=_Record, **_measured)


class RolloutRecord(Measurements):
    """The fields that all formats map to and from."""

    schema_: Literal["proctor.rollout/1"] = Field(default=SCHEMA, alias="schema")
    id: str = Field(default="", max_length=200)
    run: str = Field(default="", max_length=300)
    environment: str = Field(default="", max_length=300)
    version: int | None = None
    content_hash: str = Field(default="", max_length=100)
    policy: str = Field(default="", max_length=300)
    task: TaskRecord | None = None
    """Default: the number of the line is the task."""
    group: Annotated[int | None, Field(ge=0, le=MAX_INDEX)] = None
    member: Annotated[int | None, Field(ge=0, le=MAX_INDEX)] = None
    """Index within its group. Default: the order of the file."""
    phase: Phase = Phase.EVALUATION
    training_step: Annotated[int | None, Field(ge=0, le=MAX_INDEX)] = None
    status: Literal[RolloutStatus.COMPLETED, RolloutStatus.FAILED, RolloutStatus.CANCELLED] = RolloutStatus.COMPLETED
    stop_reason: StopReason | None = None
    error: ErrorRecord | None = None
    attempts: int = Field(default=1, ge=1, le=10_000)
    reward: Number | None = None
    rewards: dict[Name, RewardRecord] = Field(default_factory=dict, max_length=MAX_NAMES)
    """Reward columns with their weights."""
    metrics: dict[Name, Number | None] = Field(default_factory=dict, max_length=MAX_NAMES)
    """Unweighted numbers."""
    messages: list[Json] = Field(max_length=MAX_MESSAGES)
    opening: Json = Field(default_factory=dict)
    steps: list[Step] = Field(default=[], max_length=MAX_STEPS)
    is_truncated: bool = False
    tokens: TokensRecord | None = None
    seats: Seats | None = None
    """The turns of the other seats, if several policies played."""
    advantage: Number | None = None
    cost: Number | None = None
    """In US dollars."""
    started_at: datetime | None = None
    ended_at: datetime | None = None

    @field_validator("messages")
    @classmethod
    def _are_messages(cls, messages: list[Json]) -> list[Json]:
        for number, message in enumerate(messages):
            role, content = message.get("role"), message.get("content")
            if not isinstance(role, str) or not 0 < len(role) <= MAX_ROLE:
                raise ValueError(f"message {number} has no role")
            if not isinstance(content, str):
                raise ValueError(f"the content of message {number} is not text")
        return messages

    @field_validator("seats")
    @classmethod
    def _have_messages(cls, seats: Seats | None) -> Seats | None:
        for play in seats.others if seats else ():
            cls._are_messages(play.messages)
        return seats

    @model_validator(mode="after")
    def _has_reward_or_error(self) -> "RolloutRecord":
        """A failed rollout never has a reward, and a completed one always does."""
        if self.error is not None and self.status is RolloutStatus.COMPLETED:
            self.status = RolloutStatus.FAILED
        if self.status is not RolloutStatus.COMPLETED:
            self.reward, self.rewards, self.advantage = None, {}, None
        elif self.reward is None:
            raise ValueError("a completed rollout needs a reward (a failed one needs an error)")
        return self


class DuplicateRollout(ValueError):
    """Two rollouts have the same index in a group."""


@dataclass
class RolloutPlacer:
    manifest: Manifest
    split: Split
    """Split of tasks that do not name theirs."""
    are_tasks_shared: bool
    """The file's task numbers are those of the environment. Otherwise tasks get seeds that no task of ours has, so that
    rollouts of different questions are never compared."""
    _groups: dict[tuple[object, ...], int] = field(default_factory=dict)
    _members: Counter[int] = field(default_factory=Counter)
    _taken: set[tuple[int, int]] = field(default_factory=set)

    def place(self, record: RolloutRecord, number: int) -> Rollout:
        """Convert record `number` (from 0) of the file. Raises DuplicateRollout."""
        given = record.task or TaskRecord(index=number)
        split = given.split or self.split
        seed = given.seed
        if not self.are_tasks_shared:  # negative, which no task of ours has; the same for the same task of another file
            seed = -1 - (stable_id("foreign task", split, given.index, given.seed).int >> 66)
        task = replace(task_of(self.manifest, split, given.index, seed, given.level), arguments=given.arguments)
        key = (record.phase, record.training_step, task.split, task.index, task.seed, record.group)
        group = self._groups.setdefault(key, len(self._groups))
        member = self._members[group] if record.member is None else record.member
        if (group, member) in self._taken:
            raise DuplicateRollout(f"member {member} of the group on task {task.key} occurs twice")
        self._taken.add((group, member))
        self._members[group] = max(self._members[group], member + 1)
        return rollout_of(record, task, group, member)


def rollout_of(record: RolloutRecord, task: TaskSpec, group: int, member: int) -> Rollout:
    same = ("status", "attempts", "reward", "opening", "messages", "is_truncated", "advantage", "cost", "seats")
    times = ("started_at", "ended_at")
    default_stop = StopReason.DONE if record.status is RolloutStatus.COMPLETED else None
    rollout = Rollout(
        task=task,
        phase=Phase.EVALUATION,
        group=group,
        member=member,
        stop_reason=record.stop_reason or default_stop,
        error_kind=record.error.kind if record.error else None,
        error_message=record.error.message if record.error else None,
        columns={name: reward.score for name, reward in record.rewards.items()},
        metrics={name: value for name, value in record.metrics.items() if value is not None},
        steps=record.steps or [Step(**step) for step in steps_of(record.messages)],
        **{name: getattr(record, name) for name in (*same, *times, *MEASURED)},
    )
    if (tokens := record.tokens) is not None:
        rollout.prompt_token_ids, rollout.completion_token_ids = tokens.prompt, tokens.completion
        rollout.completion_mask = list(tokens.mask) if tokens.mask is not None else None
        rollout.logprobs = [value or 0.0 for value in tokens.logprobs] if tokens.logprobs is not None else None
        rollout.token_texts, rollout.token_turns = tokens.texts, tokens.turns
        rollout.turn_advantages = tokens.turn_advantages
    return rollout
