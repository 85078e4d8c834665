"""Requests and responses of policies, and presets of endpoints."""

import json
import uuid
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from backend.domain.policies.connections import Finding
from backend.domain.policies.prices import Dollars
from backend.domain.vocabulary import CheckStatus, PolicyKind
from backend.operations.schemas import Cli, ListRequest, Progress, ProjectText, Request, Response

NAME = r"^[^\x00-\x1f]+$"
PresetName = Literal["vllm", "hugging_face", "openai", "llama_cpp", "ollama"]

MAX_EXTRA_CHARACTERS = 10_000
OURS = frozenset({"messages", "model", "stream", "tools", "n"})
"""Fields of a request that Proctor writes itself, or that would change the shape of the reply."""


def _read_extra(value: object) -> object:
    """Read JSON from the text field of a form, and refuse reserved and very large fields."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else {}
        except ValueError as error:
            raise ValueError(f"This is not JSON: {error}") from error
    if isinstance(value, dict):
        if taken := sorted(OURS & value.keys()):
            raise ValueError(f"Proctor writes {', '.join(taken)} itself. Remove it")
        if len(json.dumps(value)) > MAX_EXTRA_CHARACTERS:
            raise ValueError(f"At most {MAX_EXTRA_CHARACTERS:,} characters")
    return value


class PolicySettings(Request):
    """How a policy acts. Fields of the other kind of policy are ignored."""

    description: str | None = Field(None, max_length=2000, description="Notes for your team.")
    preset: PresetName | None = Field(None, description="Known kind of endpoint: sets the base URL.")
    base_url: str | None = Field(
        None, max_length=500, description="OpenAI-compatible endpoint, without /chat/completions."
    )
    model: str | None = Field(None, max_length=200, description="Name of the model at the endpoint.")
    secret: Annotated[
        SecretStr,
        Field(description="API key of the endpoint. Stored encrypted, bound to the base URL, never shown."),
        Cli(option="--key", envvar="PROCTOR_POLICY_KEY"),
    ] = SecretStr("")
    text_calls: Annotated[
        bool | None,
        Field(description="Write tools into the system prompt and read calls from text, without the endpoint's own."),
        Cli(option="--text-calls/--tool-calls"),
    ] = None
    no_seed: Annotated[
        bool | None,
        Field(description="Do not send `seed`, which some endpoints refuse."),
        Cli(option="--no-seed/--seed"),
    ] = None
    logprobs: bool | None = Field(None, description="Request and store log-probabilities of tokens.")
    token_ids: bool | None = Field(None, description="Request token ids too, as vLLM returns them.")
    sends_reasoning: bool | None = Field(None, description="Send the model's earlier reasoning back in later turns.")
    price_input: Dollars | None = Field(None, description="US dollars per million input tokens.")
    price_output: Dollars | None = Field(None, description="US dollars per million output tokens.")
    price_cached_input: Dollars | None = Field(
        None, description="US dollars per million cached input tokens. Default: the input price."
    )
    concurrency: int | None = Field(
        None, ge=1, le=1024, description="Maximum number of concurrent requests, shared by all runs on a worker."
    )
    requests_per_minute: int | None = Field(None, ge=1, le=10_000_000, description="Maximum requests per minute.")
    tokens_per_minute: int | None = Field(None, ge=1, le=10_000_000_000, description="Maximum tokens per minute.")
    timeout_seconds: Annotated[
        float | None,
        Field(gt=0, le=3600, allow_inf_nan=False, description="Time limit of one attempt in seconds. Default: 60."),
        Cli(option="--timeout"),
    ] = None
    attempts: int | None = Field(
        None, ge=1, le=20, description="Attempts per request while the endpoint is busy. Default: 5."
    )
    extra: Annotated[
        dict[str, Any] | None,
        BeforeValidator(_read_extra),
        Field(description='Further fields of every request as JSON, such as {"reasoning_effort": "low"}.'),
    ] = None
    script: Annotated[str | None, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")] = Field(
        None, description="Scripted policy: gold, random, constant, … or a script of an environment."
    )
    constant: str | None = Field(
        None, max_length=10_000, description="Reply of the script `constant`. Default: the first legal action."
    )


class CreatePolicy(PolicySettings):
    name: Annotated[str, Field(description="Display name. Names are unique."), Cli(argument=True)] = Field(
        min_length=1, max_length=80, pattern=NAME
    )
    kind: Literal["openai_api", "scripted"] | None = Field(
        None, description="Default: scripted if `script` is given, else openai_api."
    )


class UpdatePolicy(PolicySettings):
    """Only given fields change. Another base URL removes the stored key, unless a new one is given."""

    name: str | None = Field(None, min_length=1, max_length=80, pattern=NAME, description="New name.")
    forget_secret: Annotated[bool, Field(description="Remove the stored key."), Cli(option="--forget-key")] = False


class ChooseModel(Request):
    model: Annotated[str, Field(min_length=1, max_length=200), Cli(argument=True)]


class ListPolicies(ListRequest):
    """Policies to list."""

    project: ProjectText = None
    archived: bool = False
    """Include archived policies."""


class PolicyResponse(Response):
    """A policy. Its key is never shown."""

    table_columns = ("name", "kind", "id", "description")

    id: uuid.UUID
    name: str
    kind: PolicyKind
    description: str
    configuration: dict[str, Any]
    has_secret: bool
    created_at: datetime
    archived_at: datetime | None
    """When it was archived. Lists and choices omit archived policies."""


class ConnectionTestResponse(Progress):
    """The findings of a worker that tested the endpoint."""

    id: uuid.UUID
    requested_at: datetime
    is_stale: bool
    """The policy was changed since."""
    status: CheckStatus | None
    """The worst finding; null until the test has finished."""
    findings: list[Finding]
    models: list[str]
    """Models that the endpoint lists."""
    seconds: float | None


class EndpointPreset(BaseModel):
    """A known kind of endpoint."""

    model_config = ConfigDict(frozen=True)

    key: str
    label: str
    base_url: str
    model: str
    """Example of a model name there."""
    note: str
    needs_key: bool = True


PRESETS = (
    EndpointPreset(
        key="vllm",
        label="vLLM",
        base_url="http://127.0.0.1:8000/v1",
        model="Qwen/Qwen3-4B",
        note="`vllm serve MODEL`. Supports seeds and log-probabilities.",
        needs_key=False,
    ),
    EndpointPreset(
        key="hugging_face",
        label="Hugging Face router",
        base_url="https://router.huggingface.co/v1",
        model="Qwen/Qwen3-4B:cheapest",
        note="The key is a Hub token with access to inference providers. `:provider` after the model selects one.",
    ),
    EndpointPreset(
        key="openai",
        label="OpenAI",
        base_url="https://api.openai.com/v1",
        model="gpt-4.1-mini",
        note="Reasoning models refuse a temperature other than 1.",
    ),
    EndpointPreset(
        key="llama_cpp",
        label="llama.cpp",
        base_url="http://127.0.0.1:8080/v1",
        model="default",
        note="`llama-server -m FILE.gguf --jinja`. `--jinja` enables tool calls.",
        needs_key=False,
    ),
    EndpointPreset(
        key="ollama",
        label="Ollama",
        base_url="http://127.0.0.1:11434/v1",
        model="qwen3:8b",
        note="`ollama serve`. Pull the model first.",
        needs_key=False,
    ),
    EndpointPreset(
        key="other",
        label="Other",
        base_url="",
        model="",
        note="Any OpenAI-compatible chat completions endpoint, including `proctor serve CHECKPOINT`.",
    ),
)
