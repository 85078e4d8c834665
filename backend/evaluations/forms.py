"""What a person or a script asks for: the same models read HTML forms and JSON bodies."""

import uuid
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from backend.domain.vocabulary import Phase, RolloutStatus, RunKind, RunStatus, Split, StopReason


class EvaluationRequest(BaseModel):
    """An evaluation to start. What is left out gets its default, which the run's configuration then spells out."""

    model_config = ConfigDict(extra="ignore")

    version_id: uuid.UUID
    policy_id: uuid.UUID
    checkpoint_id: uuid.UUID | None = None
    """Only for local policies; left out: the best one, else the newest."""
    split: Split = Split.HELDOUT
    tasks: int = Field(default=100, ge=1, le=100_000)
    first_task: int = Field(default=0, ge=0)
    group_size: int = Field(default=1, ge=1, le=256)
    temperature: float = Field(default=1.0, ge=0, le=5, allow_inf_nan=False)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens_per_turn: Annotated[int | None, Field(ge=1, le=131072)] = None
    """Left out: what the environment declares."""
    concurrency: Annotated[int | None, Field(ge=1, le=1024)] = None
    """Episodes in flight; left out: what policy and environment bear."""
    seed: int = Field(default=0, ge=0, le=2**53)
    name: Annotated[str | None, Field(max_length=200)] = None
    key: Annotated[str | None, Field(max_length=100)] = None
    """Any text of the sender's; the same key again gives the run that it started first."""


class PolicyRequest(BaseModel):
    """A policy to add."""

    model_config = ConfigDict(extra="ignore")

    kind: Literal["openai_api", "scripted"]
    name: str = Field(min_length=1, max_length=80, pattern=r"^[^\x00-\x1f]+$")
    description: str = Field(default="", max_length=2000)
    base_url: Annotated[str | None, Field(max_length=500)] = None
    """openai_api: up to and without `/chat/completions`, e.g. `http://127.0.0.1:11434/v1`."""
    model: Annotated[str | None, Field(max_length=200)] = None
    """openai_api: the model's name at that endpoint."""
    secret: SecretStr = SecretStr("")
    """openai_api: the endpoint's key. Stored encrypted, bound to the base URL, never shown."""
    text_calls: bool = False
    """openai_api: the endpoint has no tool calls; the tools stand in the system prompt, and a call is text."""
    script: Annotated[str | None, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")] = None
    """scripted: `gold`, `random`, `constant`, … or the name of a script that environments offer."""
    constant: Annotated[str | None, Field(max_length=10_000)] = None
    """scripted `constant`: the reply; left out: the first legal action."""


class _Filter(BaseModel):
    """What a list shows. An empty choice of a filter form counts as none."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    after: str | None = None
    """The `next` of the page before."""
    limit: int = Field(default=50, ge=1, le=500)

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {name: value for name, value in values.items() if not isinstance(value, str) or value.strip()}

    def query(self, **changes: Any) -> str:
        """As a query string of the first page with some of it changed; None and False leave out."""
        values = self.model_dump(mode="json", exclude_defaults=True, exclude={"after"}) | changes
        return urlencode({name: value for name, value in values.items() if value not in (None, False, "")})


class RunFilter(_Filter):
    """Which runs a list shows."""

    kind: RunKind | None = None
    status: RunStatus | None = None
    environment: str | None = None
    """An environment's name."""
    version_id: uuid.UUID | None = None
    policy_id: uuid.UUID | None = None
    text: str | None = Field(default=None, max_length=200)
    """Part of the run's name."""


class RolloutFilter(_Filter):
    """Which rollouts of a run a list shows, and in which order."""

    status: RolloutStatus | None = None
    phase: Phase | None = None
    step: int | None = None
    """Training step."""
    level: int | None = None
    stop_reason: StopReason | None = None
    min_reward: float | None = None
    max_reward: float | None = None
    column: str | None = None
    """A reward column for `min_column` and `max_column`."""
    min_column: float | None = None
    max_column: float | None = None
    flagged: bool = False
    text: str | None = Field(default=None, max_length=500)
    """Somewhere in the conversation."""
    sort: str = "-seq"
    """`seq`, `reward`, `advantage`, `tokens`, `turns`, `level`, `step`, `seconds` or a reward column; `-`: falling."""


class GroupFilter(_Filter):
    """Which groups of a run a list shows."""

    phase: Phase | None = None
    step: int | None = None
    level: int | None = None
    spread: Literal["mixed", "same"] | None = None
    """mixed: the members' rewards differ, so there is something to learn from. same: they do not."""
