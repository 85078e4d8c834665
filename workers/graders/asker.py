"""Requests to a policy that shall answer in a form: held to a schema where it can be, asked once more where it failed.

Judges, questions, monitors and contrasts all ask this way.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from backend.domain.environments.manifest import Manifest
from backend.domain.errors import JudgeError, PolicyError
from backend.domain.graders.judge_prompts import Question, ask_again
from backend.domain.policies.prices import cost_of
from backend.domain.rollouts.rollout import task_of
from backend.domain.runs.plans import Sampling
from backend.domain.vocabulary import PolicyKind, Split
from workers.policies import make_policy
from workers.policies.base import EpisodeStart, Policy, Reply, Turn

T = TypeVar("T")
_MANIFEST = Manifest.model_validate(
    {"name": "judging", "proctor": {"agent": {"action": {"field": "text"}}, "rewards": {"score": 1.0}}}
)
"""Of no environment: policies are asked by way of an episode."""


@dataclass(slots=True)
class Spent:
    """What was read and written so far, and what it cost where there is a price."""

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
    """What was asked, what came back, what it means."""

    question: Question
    replies: list[str]
    """The last one was read; the one before it was not in the form."""
    found: T | None
    problem: str = ""


class Asker:
    """One policy over one pool of connections. Close it at the end."""

    def __init__(self, policy: Policy, strict: Policy | None, price: Any, max_tokens: int) -> None:
        self._policy = policy
        self._strict = strict
        """The same policy, made to keep to the schema; None once it has refused."""
        self._price = price
        self._max_tokens = max_tokens

    async def aclose(self) -> None:
        await self._policy.aclose()
        if self._strict is not None:
            await self._strict.aclose()

    async def ask(self, asked: Question, read: Callable[[str], T], seed: int, spent: Spent) -> Exchange[T]:
        """`read` raises JudgeError for what is not in the form; then it is asked once more. Raises RolloutError."""
        replies: list[str] = []
        problem = ""
        for _ in range(2):
            reply = await self._reply(asked, seed)
            cost = cost_of(self._price, reply.tokens_in, reply.tokens_out, reply.cached_in)
            spent.add(reply.tokens_in, reply.tokens_out, cost)
            replies.append(reply.text)
            try:
                return Exchange(asked, replies, read(reply.text))
            except JudgeError as error:
                problem = f"{error} (it was cut at the token limit)" if reply.is_truncated else str(error)
                asked = ask_again(asked, reply.text, problem)
        return Exchange(asked, replies, None, problem)

    async def _reply(self, asked: Question, seed: int) -> Reply:
        if self._strict is not None:
            try:
                return await self._reply_of(self._strict, asked, seed)
            except PolicyError as error:
                if not _is_about_schema(str(error)):
                    raise
                strict, self._strict = self._strict, None
                if strict is not None:  # several requests may have been refused at once
                    await strict.aclose()
        return await self._reply_of(self._policy, asked, seed)

    async def _reply_of(self, policy: Policy, asked: Question, seed: int) -> Reply:
        player = await policy.begin(EpisodeStart(task_of(_MANIFEST, Split.TRAIN, 0), _MANIFEST, 0, seed))
        try:
            text = str(asked.messages[-1]["content"])
            return await player.act(Turn(0, asked.messages, text, {}, {}, {}, max_tokens=self._max_tokens))
        finally:
            player.close()


def make_asker(
    kind: PolicyKind,
    policy: Mapping[str, Any],
    secret: str | None,
    *,
    temperature: float,
    max_tokens: int,
    response_format: Mapping[str, Any],
) -> Asker:
    """Any policy that is asked over the network, or a script."""
    sampling = Sampling(temperature=temperature, max_tokens_per_turn=max_tokens)
    plain = make_policy(kind, policy, secret, sampling)
    strict = None
    if kind is PolicyKind.OPENAI_API:
        extra = {**(policy.get("extra") or {}), "response_format": dict(response_format)}
        strict = make_policy(kind, {**policy, "extra": extra}, secret, sampling)
    return Asker(plain, strict, policy.get("price"), max_tokens)


def _is_about_schema(error: str) -> bool:
    return any(word in error.lower() for word in ("response_format", "json_schema", "json schema", "guided", "grammar"))
