"""What is asked of a policy: the form and the JSON body by which one is added or changed."""

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from backend.domain.policies.prices import Dollars, Limits, Price

MAX_EXTRA_CHARACTERS = 10_000
OURS = frozenset({"messages", "model", "stream", "tools", "n"})
"""Fields of a request's body that Proctor itself writes, or that would change what an answer is."""


def _object(value: object) -> object:
    """A form sends JSON in a text field."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value.strip() else {}
    except ValueError as error:
        raise ValueError(f"This is not JSON: {error}") from error


def _extra(value: dict[str, Any]) -> dict[str, Any]:
    if taken := sorted(OURS & value.keys()):
        raise ValueError(f"Proctor writes {', '.join(taken)} itself; leave that out")
    if len(json.dumps(value)) > MAX_EXTRA_CHARACTERS:
        raise ValueError(f"At most {MAX_EXTRA_CHARACTERS:,} characters")
    return value


class PolicyRequest(BaseModel):
    """A policy to add, or what one shall be from now on."""

    model_config = ConfigDict(extra="ignore")

    kind: Literal["openai_api", "scripted"]
    name: str = Field(min_length=1, max_length=80, pattern=r"^[^\x00-\x1f]+$")
    description: str = Field(default="", max_length=2000)
    base_url: Annotated[str | None, Field(max_length=500)] = None
    """openai_api: up to and without `/chat/completions`, e.g. `http://127.0.0.1:11434/v1`."""
    model: Annotated[str | None, Field(max_length=200)] = None
    """openai_api: the model's name at that endpoint."""
    secret: SecretStr = SecretStr("")
    """openai_api: the endpoint's key. Stored encrypted, bound to the base URL, never shown. Empty in a change: the
    stored one stays, unless the base URL changes."""
    forget_secret: bool = False
    """In a change: the stored key is forgotten."""
    text_calls: bool = False
    """openai_api: the endpoint has no tool calls; the tools stand in the system prompt, and a call is text."""
    no_seed: bool = False
    """openai_api: do not send `seed`, which some endpoints refuse."""
    logprobs: bool = False
    """openai_api: ask for the log-probabilities of the tokens, and store them."""
    token_ids: bool = False
    """openai_api: ask for the ids of the tokens too, as vLLM gives them."""
    sends_reasoning: bool = False
    """openai_api: send what the policy thought in earlier turns back to it."""
    price_input: Dollars | None = None
    """US dollars per million tokens read. With `price_output` it makes every rollout's cost known."""
    price_output: Dollars | None = None
    price_cached_input: Dollars | None = None
    """Of prompt tokens that the endpoint had in its cache; left out: like all input."""
    concurrency: Annotated[int | None, Field(ge=1, le=1024)] = None
    """Requests at a time that the endpoint bears, over all runs of a worker."""
    requests_per_minute: Annotated[int | None, Field(ge=1, le=10_000_000)] = None
    tokens_per_minute: Annotated[int | None, Field(ge=1, le=10_000_000_000)] = None
    timeout_seconds: Annotated[float | None, Field(gt=0, le=3600, allow_inf_nan=False)] = None
    """Of one try; left out: a minute."""
    attempts: Annotated[int | None, Field(ge=1, le=20)] = None
    """Tries of one request while the endpoint is busy; left out: 5."""
    extra: Annotated[dict[str, Any], BeforeValidator(_object), AfterValidator(_extra)] = Field(default_factory=dict)
    """Further fields of the request's body, e.g. `{"reasoning_effort": "low"}`."""
    script: Annotated[str | None, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")] = None
    """scripted: `gold`, `random`, `constant`, … or the name of a script that environments offer."""
    constant: Annotated[str | None, Field(max_length=10_000)] = None
    """scripted `constant`: the reply; left out: the first legal action."""

    @property
    def price(self) -> Price | None:
        if self.price_input is None or self.price_output is None:
            return None
        return Price(input=self.price_input, output=self.price_output, cached_input=self.price_cached_input)

    @property
    def limits(self) -> Limits:
        return Limits(
            concurrency=self.concurrency,
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
        )


class Preset(BaseModel):
    """A kind of endpoint, as the form proposes it."""

    model_config = ConfigDict(frozen=True)

    key: str
    label: str
    base_url: str
    model: str
    """An example of how models are called there."""
    note: str
    needs_key: bool = True


PRESETS = (
    Preset(
        key="vllm",
        label="vLLM",
        base_url="http://127.0.0.1:8000/v1",
        model="Qwen/Qwen3-4B",
        note="`vllm serve MODEL`. Takes seeds and gives log-probabilities.",
        needs_key=False,
    ),
    Preset(
        key="hugging_face",
        label="Hugging Face router",
        base_url="https://router.huggingface.co/v1",
        model="Qwen/Qwen3-4B:cheapest",
        note="The key is a Hub token that may call inference providers; `:provider` behind the model chooses one.",
    ),
    Preset(
        key="openai",
        label="OpenAI",
        base_url="https://api.openai.com/v1",
        model="gpt-4.1-mini",
        note="Reasoning models refuse a temperature other than 1.",
    ),
    Preset(
        key="llama_cpp",
        label="llama.cpp",
        base_url="http://127.0.0.1:8080/v1",
        model="default",
        note="`llama-server -m FILE.gguf --jinja`; --jinja gives it tool calls.",
        needs_key=False,
    ),
    Preset(
        key="ollama",
        label="Ollama",
        base_url="http://127.0.0.1:11434/v1",
        model="qwen3:8b",
        note="`ollama serve`; the model is pulled there first.",
        needs_key=False,
    ),
    Preset(
        key="other",
        label="Other",
        base_url="",
        model="",
        note="Anything that speaks the OpenAI chat completions API, `proctor serve CHECKPOINT` too.",
    ),
)
