"""Requests to a grader's model: with a schema if the endpoint enforces one, and one retry for an unreadable reply."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from backend.domain.environments.manifest import Manifest
from backend.domain.errors import JudgeError, PolicyError
from backend.domain.graders.prompts import LETTERS, GraderPrompt, retry_prompt
from backend.domain.graders.replies import response_format
from backend.domain.graders.settings import GraderKind, JudgeSettings, QuestionSettings
from backend.domain.policies.prices import cost_of
from backend.domain.rollouts.rollout import task_of
from backend.domain.runs.plans import Sampling
from backend.domain.vocabulary import PolicyKind, Split
from workers.policies import make_policy
from workers.policies.base import EpisodeStart, Policy, Reply, Turn

T = TypeVar("T")
_MANIFEST = Manifest.model_validate(
    {"name": "grading", "proctor": {"agent": {"action": {"field": "text"}}, "rewards": {"score": 1.0}}}
)
"""Policies act in episodes, so each request is an episode of one turn in an environment that does not exist."""


@dataclass(slots=True)
class Usage:
    """Tokens and cost so far; the cost is None without a price."""

    tokens_in: int = 0
    tokens_out: int = 0
    cost: float | None = None

    def add(self, tokens_in: int, tokens_out: int, cost: float | None) -> None:
        self.tokens_in += tokens_in
        self.tokens_out += tokens_out
        if cost is not None:
            self.cost = (self.cost or 0.0) + cost


@dataclass(slots=True)
class Exchange(Generic[T]):
    """A request, its replies and the parsed result."""

    prompt: GraderPrompt
    replies: list[str]
    """The last one counts. The one before it was unreadable."""
    parsed: T | None
    problem: str = ""


class GraderModel:
    """The policy behind a grader, over one pool of connections. Close it at the end."""

    def __init__(self, policy: Policy, strict: Policy | None, price: Mapping[str, Any] | None, max_tokens: int) -> None:
        self._policy = policy
        self._strict = strict
        """The same policy with an enforced schema; None once the endpoint has refused it."""
        self._price = price
        self._max_tokens = max_tokens

    async def aclose(self) -> None:
        await self._policy.aclose()
        if self._strict is not None:
            await self._strict.aclose()

    async def ask(self, prompt: GraderPrompt, parse: Callable[[str], T], seed: int, usage: Usage) -> Exchange[T]:
        """Send the prompt and parse the reply; `parse` raises JudgeError for an unreadable one. Raises RolloutError."""
        replies: list[str] = []
        problem = ""
        for _ in range(2):
            reply = await self._reply(prompt, seed)
            cost = cost_of(self._price, reply.tokens_in, reply.tokens_out, reply.cached_in)
            usage.add(reply.tokens_in, reply.tokens_out, cost)
            replies.append(reply.text)
            try:
                return Exchange(prompt, replies, parse(reply.text))
            except JudgeError as error:
                problem = f"{error} (it was cut at the token limit)" if reply.is_truncated else str(error)
                prompt = retry_prompt(prompt, reply.text, problem)
        return Exchange(prompt, replies, None, problem)

    async def _reply(self, prompt: GraderPrompt, seed: int) -> Reply:
        if self._strict is not None:
            try:
                return await self._reply_of(self._strict, prompt, seed)
            except PolicyError as error:
                words = ("response_format", "json_schema", "json schema", "guided", "grammar")
                if not any(word in str(error).lower() for word in words):
                    raise
                strict, self._strict = self._strict, None
                if strict is not None:  # several requests may have been refused at once
                    await strict.aclose()
        return await self._reply_of(self._policy, prompt, seed)

    async def _reply_of(self, policy: Policy, prompt: GraderPrompt, seed: int) -> Reply:
        player = await policy.begin(EpisodeStart(task_of(_MANIFEST, Split.TRAIN, 0), _MANIFEST, 0, seed))
        try:
            text = str(prompt.messages[-1]["content"])
            return await player.act(Turn(0, prompt.messages, text, {}, {}, {}, max_tokens=self._max_tokens))
        finally:
            player.close()


def make_model(
    settings: JudgeSettings | QuestionSettings, kind: PolicyKind, policy: Mapping[str, Any], secret: str | None
) -> GraderModel:
    """From the configuration of a policy: an endpoint or a script."""
    sampling = Sampling(temperature=settings.temperature, max_tokens_per_turn=settings.max_tokens)
    strict = None
    if kind is PolicyKind.OPENAI_API:
        is_contrast = isinstance(settings, QuestionSettings) and settings.kind is GraderKind.CONTRAST
        letters = LETTERS[: 2 * settings.each] if is_contrast and isinstance(settings, QuestionSettings) else ""
        extra = {**(policy.get("extra") or {}), "response_format": response_format(settings, letters)}
        strict = make_policy(kind, {**policy, "extra": extra}, secret, sampling)
    return GraderModel(make_policy(kind, policy, secret, sampling), strict, policy.get("price"), settings.max_tokens)
