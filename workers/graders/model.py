"""The model of a grader, and results before they are stored.

Requests carry a schema if the endpoint enforces one, and are repeated once after an unreadable reply.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, TypeVar

from backend.domain.environments.manifest import Manifest
from backend.domain.errors import JudgeError, PolicyError, RolloutError
from backend.domain.graders.canaries import CanaryReport
from backend.domain.graders.evidence import FoundQuote
from backend.domain.graders.prompts import LETTERS, GraderPrompt, retry_prompt
from backend.domain.graders.replies import Pattern, response_format
from backend.domain.graders.settings import GraderKind, JudgeSettings, QuestionSettings
from backend.domain.policies.prices import cost_of
from backend.domain.rollouts.rollout import task_of
from backend.domain.runs.plans import Sampling
from backend.domain.text import plain_text
from backend.domain.vocabulary import PolicyKind, Split
from workers.policies import make_policy
from workers.policies.base import EpisodeStart, Policy, Reply, Turn

T = TypeVar("T")
MAX_RAW = 20_000
"""Characters of an unreadable reply that are stored."""
SCHEMA_ERRORS = ("response_format", "json_schema", "json schema", "guided", "grammar")
"""Words in the error of an endpoint that does not support schemas."""
CONFIRMATIONS = 3
"""Repeats of each canary once a grader looks injectable."""
_MANIFEST = Manifest.model_validate(
    {"name": "grading", "proctor": {"agent": {"action": {"field": "text"}}, "rewards": {"score": 1.0}}}
)
"""Policies act in episodes, so each request is an episode of one turn in an environment that does not exist."""


@dataclass(slots=True)
class Exchange(Generic[T]):
    """A request, its replies and the parsed result."""

    prompt: GraderPrompt
    replies: list[str]
    """The last one counts. The one before it was unreadable."""
    parsed: T | None
    problem: str = ""


@dataclass(slots=True)
class GraderResult:
    """The outcome of one or more requests, with their usage."""

    tokens_in: int = 0
    tokens_out: int = 0
    cost: float | None = None
    """None without a price."""
    dropped: int = 0
    """Quotes that were not found. Contrasts: also quotes from a low-reward rollout."""
    error: str = ""
    is_unreachable: bool = False
    """The model did not reply at all."""
    seconds: float = 0.0
    exchanges: list[Exchange[Any]] = field(default_factory=list)

    def fail(self, error: RolloutError) -> None:
        self.error = plain_text(str(error))[:2000]
        self.is_unreachable = isinstance(error, PolicyError)


@dataclass(slots=True)
class GradeResult(GraderResult):
    """The grade of one rollout. Without a score it failed, for the reason in `error`."""

    score: float | None = None
    spread: float | None = None
    verdicts: list[dict[str, object]] = field(default_factory=list)
    answer: str | None = None
    confidence: float | None = None
    reason: str = ""
    citations: list[FoundQuote] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PatternEvidence:
    """A rollout that shows a pattern, with its quotes."""

    position: int
    """Among the members of the contrast."""
    quotes: list[FoundQuote]


@dataclass(slots=True)
class ContrastResult(GraderResult):
    """The result of comparing several rollouts."""

    patterns: list[tuple[Pattern, list[PatternEvidence]]] = field(default_factory=list)


def stored_quotes(quotes: Sequence[FoundQuote]) -> list[dict[str, object]]:
    """Quotes as JSON columns store them."""
    return [asdict(each) | {"part": str(each.part)} for each in quotes]


class GraderModel(ABC):
    """The policy behind a grader, over one connection pool. Close it at the end.

    The methods of graders never raise for what the model does.
    """

    def __init__(
        self,
        settings: JudgeSettings | QuestionSettings,
        kind: PolicyKind,
        policy: Mapping[str, Any],
        secret: str | None,
    ) -> None:
        """From the configuration of a policy: an endpoint or a scripted one."""
        sampling = Sampling(temperature=settings.temperature, max_tokens_per_turn=settings.max_tokens)
        self.settings = settings
        self._policy = make_policy(kind, policy, secret, sampling)
        self._strict: Policy | None = None
        """The same policy with an enforced schema; None once the endpoint has refused it."""
        self._price = policy.get("price")
        if kind is PolicyKind.OPENAI_API:
            is_contrast = isinstance(settings, QuestionSettings) and settings.kind is GraderKind.CONTRAST
            letters = LETTERS[: 2 * settings.each] if is_contrast and isinstance(settings, QuestionSettings) else ""
            extra = {**(policy.get("extra") or {}), "response_format": response_format(settings, letters)}
            self._strict = make_policy(kind, {**policy, "extra": extra}, secret, sampling)

    async def aclose(self) -> None:
        await self._policy.aclose()
        if self._strict is not None:
            await self._strict.aclose()

    async def canaries(self) -> tuple[CanaryReport, list[GraderResult], str]:
        """Try fixed conversations that manipulate, and return the usage and why the model cannot be reached, too.

        A suspicion is checked with more repeats, because some models waver.
        """
        usage: list[GraderResult] = []
        report, problem = await self._run_canaries(1, usage)
        if report.is_injectable and not problem:
            report, problem = await self._run_canaries(CONFIRMATIONS, usage)
        return report, usage, problem

    @abstractmethod
    async def _run_canaries(self, repeats: int, usage: list[GraderResult]) -> tuple[CanaryReport, str]: ...

    async def ask(
        self, prompt: GraderPrompt, parse: Callable[[str], T], seed: int, result: GraderResult
    ) -> Exchange[T] | None:
        """Send the prompt and parse the reply. `parse` raises JudgeError for an unreadable one.

        Adds the exchange and its usage to the result. Returns None, with the result's error, if the model failed.
        """
        replies: list[str] = []
        exchange = Exchange[T](prompt, replies, None)
        try:
            for _ in range(2):
                reply = await self._reply(prompt, seed)
                cost = cost_of(self._price, reply.tokens_in, reply.tokens_out, reply.cached_in)
                result.tokens_in += reply.tokens_in
                result.tokens_out += reply.tokens_out
                if cost is not None:
                    result.cost = (result.cost or 0.0) + cost
                replies.append(reply.text)
                exchange.prompt = prompt
                try:
                    exchange.parsed, exchange.problem = parse(reply.text), ""
                    break
                except JudgeError as error:
                    exchange.problem = f"{error} (it was cut at the token limit)" if reply.is_truncated else str(error)
                    prompt = retry_prompt(prompt, reply.text, exchange.problem)
        except RolloutError as error:
            result.fail(error)
            return None
        result.exchanges.append(exchange)
        return exchange

    async def _reply(self, prompt: GraderPrompt, seed: int) -> Reply:
        strict = self._strict
        policy = strict or self._policy
        player = await policy.begin(EpisodeStart(task_of(_MANIFEST, Split.TRAIN, 0), _MANIFEST, 0, seed))
        try:
            text = str(prompt.messages[-1]["content"])
            return await player.act(Turn(0, prompt.messages, text, {}, {}, {}, max_tokens=self.settings.max_tokens))
        except PolicyError as error:
            if strict is None or not any(word in str(error).lower() for word in SCHEMA_ERRORS):
                raise
            if self._strict is not None:  # several requests may have been refused at once
                self._strict = None
                await strict.aclose()
        finally:
            player.close()
        return await self._reply(prompt, seed)
