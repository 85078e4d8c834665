"""One rollout as it travels. As JSON, one a line, it is the plain format, described in docs/exchange.md.

Only `messages` must be there; a completed rollout has a reward, a failed one an error and never a reward.
"""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model, field_validator, model_validator

from backend.domain.rollouts.fields import MEASURED
from backend.domain.vocabulary import ErrorKind, Phase, RolloutStatus, Split, StopReason

SCHEMA: Literal["proctor.rollout/1"] = "proctor.rollout/1"
MAX_MESSAGES = 10_000
MAX_STEPS = 10_000
MAX_NAMES = 200
"""Reward columns or metrics of one rollout."""
MAX_ROLE = 32
MAX_INDEX = 2_000_000_000
Number = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=2_000_000_000)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore")


class TaskRecord(_Part):
    """Which task was played."""

    split: Split | None = None
    index: int = Field(ge=0, le=MAX_INDEX)
    level: Annotated[int | None, Field(ge=0, le=10_000)] = None
    seed: Annotated[int | None, Field(ge=-(2**62), le=2**62)] = None
    arguments: dict[str, Any] = {}


class Earned(_Part):
    """One reward column."""

    score: Number
    weight: Number = 1.0


class Failure(_Part):
    """Why there is no reward."""

    kind: ErrorKind = ErrorKind.ENVIRONMENT
    message: str = Field(default="", max_length=100_000)


class StepRecord(_Part):
    """One turn."""

    reply: str
    action: dict[str, Any] | None = None
    observation: dict[str, Any] = {}
    text: str = ""
    rewards: dict[Name, Number] = Field(default={}, max_length=MAX_NAMES)
    done: bool = False
    note: str | None = None
    policy_seconds: Seconds = 0.0
    environment_seconds: Seconds = 0.0
    queue_seconds: Seconds = 0.0
    calls: list[dict[str, Any]] | None = None


class TokensRecord(_Part):
    """Token ids with the mask of what the policy wrote, or, where an endpoint told no ids, texts."""

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
            raise ValueError("neither `completion` nor `texts`")
        for name in ("mask", "logprobs"):
            values = getattr(self, name)
            if values is not None and len(values) != len(tokens):
                raise ValueError(f"{len(values)} {name} for {len(tokens)} tokens")
        return self


_measured: dict[str, Any] = {name: (Count, 0) if field.is_whole else (Seconds, 0.0) for name, field in MEASURED.items()}
Measurements = create_model("Measurements", __base__=_Part, **_measured)


class RolloutRecord(Measurements):
    """The fields that formats map to and from."""

    schema_: Literal["proctor.rollout/1"] = Field(default=SCHEMA, alias="schema")
    id: str = Field(default="", max_length=200)
    run: str = Field(default="", max_length=300)
    environment: str = Field(default="", max_length=300)
    version: int | None = None
    content_hash: str = Field(default="", max_length=100)
    policy: str = Field(default="", max_length=300)
    task: TaskRecord | None = None
    """Left out: the line's own number is the task."""
    group: Annotated[int | None, Field(ge=0, le=MAX_INDEX)] = None
    member: Annotated[int | None, Field(ge=0, le=MAX_INDEX)] = None
    """Ordinal among the rollouts of its group; left out: in the order of the file."""
    phase: Phase = Phase.EVALUATION
    training_step: Annotated[int | None, Field(ge=0, le=MAX_INDEX)] = None
    status: Literal[RolloutStatus.COMPLETED, RolloutStatus.FAILED, RolloutStatus.CANCELLED] = RolloutStatus.COMPLETED
    stop_reason: StopReason | None = None
    error: Failure | None = None
    attempts: int = Field(default=1, ge=1, le=10_000)
    reward: Number | None = None
    rewards: dict[Name, Earned] = Field(default_factory=dict, max_length=MAX_NAMES)
    """Reward columns with their weights."""
    metrics: dict[Name, Number | None] = Field(default_factory=dict, max_length=MAX_NAMES)
    """Numbers that carry no weight."""
    messages: list[dict[str, Any]] = Field(max_length=MAX_MESSAGES)
    opening: dict[str, Any] = Field(default_factory=dict)
    steps: list[StepRecord] = Field(default=[], max_length=MAX_STEPS)
    is_truncated: bool = False
    tokens: TokensRecord | None = None
    advantage: Number | None = None
    cost: Number | None = None
    """In US dollars."""
    started_at: datetime | None = None
    ended_at: datetime | None = None

    @field_validator("messages")
    @classmethod
    def _are_messages(cls, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for number, message in enumerate(messages):
            role, content = message.get("role"), message.get("content")
            if not isinstance(role, str) or not 0 < len(role) <= MAX_ROLE:
                raise ValueError(f"message {number} has no role")
            if not isinstance(content, str):
                raise ValueError(f"the content of message {number} is no text")
        return messages

    @model_validator(mode="after")
    def _is_honest(self) -> "RolloutRecord":
        """A failure is never a number, and a completed rollout always is one."""
        if self.error is not None and self.status is RolloutStatus.COMPLETED:
            self.status = RolloutStatus.FAILED
        if self.status is not RolloutStatus.COMPLETED:
            self.reward, self.rewards, self.advantage = None, {}, None
        elif self.reward is None:
            raise ValueError("a completed rollout needs a reward (and one that failed an error)")
        return self
