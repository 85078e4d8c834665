"""What a person or a script asks for: the same models read HTML forms and JSON bodies."""

import uuid
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from backend.domain.vocabulary import Split


def _none_if_empty(value: Any) -> Any:
    """A form sends an empty field as an empty text."""
    return None if isinstance(value, str) and not value.strip() else value


_EMPTY = BeforeValidator(_none_if_empty)
OptionalId = Annotated[uuid.UUID | None, _EMPTY]
OptionalInt = Annotated[int | None, _EMPTY]
OptionalFloat = Annotated[float | None, _EMPTY]
OptionalText = Annotated[str | None, _EMPTY]


class EvaluationRequest(BaseModel):
    """An evaluation to start. What is left out gets its default, which the run's configuration then spells out."""

    model_config = ConfigDict(extra="ignore")

    version_id: uuid.UUID
    policy_id: uuid.UUID
    checkpoint_id: OptionalId = None
    """Only for local policies; left out: the best one, else the newest."""
    split: Split = Split.HELDOUT
    tasks: int = Field(default=100, ge=1, le=100_000)
    first_task: int = Field(default=0, ge=0)
    group_size: int = Field(default=1, ge=1, le=256)
    temperature: float = Field(default=1.0, ge=0, le=5, allow_inf_nan=False)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens_per_turn: Annotated[OptionalInt, Field(ge=1, le=131072)] = None
    """Left out: what the environment declares."""
    concurrency: Annotated[OptionalInt, Field(ge=1, le=1024)] = None
    """Episodes in flight; left out: what policy and environment bear."""
    seed: int = Field(default=0, ge=0, le=2**53)
    name: Annotated[OptionalText, Field(max_length=200)] = None
    key: Annotated[OptionalText, Field(max_length=100)] = None
    """Any text of the sender's; the same key again gives the run that it started first."""


class PolicyRequest(BaseModel):
    """A policy to add."""

    model_config = ConfigDict(extra="ignore")

    kind: Literal["openai_api", "scripted"]
    name: str = Field(min_length=1, max_length=80, pattern=r"^[^\x00-\x1f]+$")
    description: str = Field(default="", max_length=2000)
    base_url: Annotated[OptionalText, Field(max_length=500)] = None
    """openai_api: up to and without `/chat/completions`, e.g. `http://127.0.0.1:11434/v1`."""
    model: Annotated[OptionalText, Field(max_length=200)] = None
    """openai_api: the model's name at that endpoint."""
    secret: SecretStr = SecretStr("")
    """openai_api: the endpoint's key. Stored encrypted, bound to the base URL, never shown."""
    script: Annotated[OptionalText, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")] = None
    """scripted: `gold`, `random`, `constant`, … or the name of a script that environments offer."""
    constant: Annotated[OptionalText, Field(max_length=10_000)] = None
    """scripted `constant`: the reply; left out: the first legal action."""
