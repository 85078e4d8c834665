"""One rollout in files. As JSON, one per line, it is the plain format, described in docs/exchange.md.

Only `messages` is required. A completed rollout has a reward, a failed one an error and never a reward.
"""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model, field_validator, model_validator

from backend.domain.rollouts.fields import MEASURED
from backend.domain.rollouts.rollout import MAX_NAMES, Name, Number, Seconds, Step
from backend.domain.vocabulary import ErrorKind, Phase, RolloutStatus, Split, StopReason

SCHEMA: Literal["proctor.rollout/1"] = "proctor.rollout/1"
MAX_MESSAGES = 10_000
MAX_STEPS = 10_000
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
