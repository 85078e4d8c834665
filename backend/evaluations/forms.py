"""What a person or a script asks for: the same models read HTML forms and JSON bodies."""

import uuid
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from backend.domain.vocabulary import Split


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
    script: Annotated[str | None, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")] = None
    """scripted: `gold`, `random`, `constant`, … or the name of a script that environments offer."""
    constant: Annotated[str | None, Field(max_length=10_000)] = None
    """scripted `constant`: the reply; left out: the first legal action."""
