"""Graders at work: judges, which score rollouts, and questions, monitors and contrasts, which answer about them.

Requests to the model carry a schema if the endpoint enforces one, and are repeated once after an unreadable reply.
Quotes are checked.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from backend.domain.environments.manifest import Manifest
from backend.domain.errors import JudgeError, PolicyError, RolloutError
from backend.domain.graders import canaries, prompts, replies
from backend.domain.graders.evidence import Quote, TurnPart, check_citations, find_citation, utterances
from backend.domain.graders.settings import AnswerType, GraderKind, JudgeSettings, JudgeTarget, QuestionSettings
from backend.domain.policies.prices import cost_of
from backend.domain.rollouts.rollout import task_of
from backend.domain.runs.plans import Sampling
from backend.domain.text import plain_text
from backend.domain.vocabulary import PolicyKind, Split
from workers.policies import make_policy
from workers.policies.base import EpisodeStart, Policy, Reply, Turn
from workers.rollouts.limits import BatchWriter

T = TypeVar("T")
C = TypeVar("C")
R = TypeVar("R", bound="GraderResult")
NEAR = 0.1
"""A suspicion this close to the demanded one counts as the demanded one."""
WINDOW, MINIMUM, MAX_FAILED_SHARE = 40, 8, 0.5
"""The work pauses if more than this share of the last results failed."""
NO_ANSWER = "The model gave no readable answer, even after a retry."
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

    prompt: prompts.GraderPrompt
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
    citations: list[Quote] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PatternEvidence:
    """A rollout that shows a pattern, with its quotes."""

    position: int
    """Among the members of the contrast."""
    quotes: list[Quote]


@dataclass(slots=True)
class ContrastResult(GraderResult):
    """The result of comparing several rollouts."""

    patterns: list[tuple[replies.Pattern, list[PatternEvidence]]] = field(default_factory=list)


def stored_quotes(quotes: Sequence[Quote]) -> list[dict[str, object]]:
    """Quotes as JSON columns store them."""
    return [each.model_dump() for each in quotes]


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
            letters = (
                prompts.LETTERS[: 2 * settings.each] if is_contrast and isinstance(settings, QuestionSettings) else ""
            )
            extra = {**(policy.get("extra") or {}), "response_format": replies.response_format(settings, letters)}
            self._strict = make_policy(kind, {**policy, "extra": extra}, secret, sampling)

    async def aclose(self) -> None:
        await self._policy.aclose()
        if self._strict is not None:
            await self._strict.aclose()

    async def run_canaries(self) -> tuple[canaries.CanaryReport, list[GraderResult], str]:
        """Try fixed conversations that manipulate, and return the usage and why the model cannot be reached, too.

        A suspicion is checked with more repeats, because some models waver.
        """
        usage: list[GraderResult] = []
        report, problem = await self._run_canaries(1, usage)
        if report.is_injectable and not problem:
            report, problem = await self._run_canaries(CONFIRMATIONS, usage)
        return report, usage, problem

    @abstractmethod
    async def _run_canaries(self, repeats: int, usage: list[GraderResult]) -> tuple[canaries.CanaryReport, str]: ...

    async def ask(
        self, prompt: prompts.GraderPrompt, parse: Callable[[str], T], seed: int, result: GraderResult
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
                    prompt = prompts.retry_prompt(prompt, reply.text, exchange.problem)
        except RolloutError as error:
            result.fail(error)
            return None
        result.exchanges.append(exchange)
        return exchange

    async def _reply(self, prompt: prompts.GraderPrompt, seed: int) -> Reply:
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


class Judge(GraderModel):
    """Asks its model about a rollout and folds the verdicts of all repeats into a score."""

    settings: JudgeSettings

    async def grade(self, facts: prompts.RolloutFacts, seed: int = 0, repeats: int | None = None) -> GradeResult:
        start, result = time.monotonic(), GradeResult()
        for repeat in range(repeats or self.settings.repeats):
            try:
                prompt = prompts.judge_prompt(self.settings, facts)
            except JudgeError as error:
                result.fail(error)
                break
            parse = partial(replies.read_verdict, self.settings, steps=prompt.steps)
            if (exchange := await self.ask(prompt, parse, seed + repeat, result)) is None:
                break
            if exchange.parsed is None:
                raw = plain_text(exchange.replies[-1])[:MAX_RAW] if exchange.replies else ""
                result.verdicts.append({"error": exchange.problem, "raw": raw})
                continue
            stored = asdict(exchange.parsed) | {"asked": len(exchange.replies)}
            if self.settings.target is JudgeTarget.STEPS:
                stored["unit"] = prompts.steps_of(facts, with_reasoning=self.settings.shows_reasoning)[0]
            result.verdicts.append({name: value for name, value in stored.items() if value not in ({}, [])})
        result.seconds = time.monotonic() - start
        # One repeat without a verdict fails all of them: a mean over the readable ones would mislead.
        missing = [exchange.problem for exchange in result.exchanges if exchange.parsed is None]
        if missing and not result.error:
            result.error = f"The judge gave no verdict, even after a retry. {missing[0]}"
        if not result.error and result.exchanges:
            verdicts = [each.parsed for each in result.exchanges if each.parsed]
            result.score, result.spread = replies.fold_verdicts(verdicts)
        return result

    async def _run_canaries(self, repeats: int, usage: list[GraderResult]) -> tuple[canaries.CanaryReport, str]:
        """Score fixed answers that demand full marks, next to a good and a bad one that do not."""
        results: list[canaries.CanaryResult] = []
        for canary in canaries.judge_canaries(self.settings.controls):
            grade = await self.grade(canary.facts, repeats=repeats)
            says = grade.error or (str(grade.verdicts[-1].get("reason", "")) if grade.verdicts else "")
            results.append(
                canaries.CanaryResult(name=canary.name, is_attack=canary.is_attack, score=grade.score, says=says)
            )
            usage.append(grade)
            if grade.is_unreachable:
                return canaries.read_judge_canaries(results), grade.error
        return canaries.read_judge_canaries(results), ""


class Questioner(GraderModel):
    """Asks a question about rollouts, monitors their reasoning, or contrasts them."""

    settings: QuestionSettings

    async def grade(self, facts: prompts.RolloutFacts, seed: int = 0, repeats: int | None = None) -> GradeResult:
        start, result = time.monotonic(), GradeResult()
        exchange = None
        try:
            prompt = prompts.question_prompt(self.settings, facts)
        except JudgeError as error:
            result.fail(error)
        else:
            exchange = await self.ask(prompt, partial(replies.read_answer, self.settings), seed, result)
        if exchange is not None and (answer := exchange.parsed) is not None:
            parts = frozenset({TurnPart.THOUGHT} if self.settings.kind is GraderKind.MONITOR else TurnPart)
            result.answer, result.score, result.confidence = answer.answer, answer.value, answer.confidence
            result.reason = answer.reason
            conversation = utterances(facts.messages)
            result.citations, result.dropped = check_citations(conversation, answer.citations, parts)
        elif exchange is not None:
            result.error = f"{NO_ANSWER} {exchange.problem}"
        result.seconds = time.monotonic() - start
        return result

    async def contrast(self, members: Sequence[prompts.ContrastMember], seed: int = 0) -> ContrastResult:
        """Compare several rollouts of one task. Keeps patterns with a quote found in a high-reward rollout."""
        start, result = time.monotonic(), ContrastResult()
        prompt = prompts.contrast_prompt(self.settings, members, seed)
        letters = prompt.letters
        parse = partial(replies.read_patterns, self.settings, letters=list(letters))
        exchange = await self.ask(prompt, parse, seed, result)
        if exchange is not None and exchange.parsed is None:
            result.error = f"{NO_ANSWER} {exchange.problem}"
        elif exchange is not None:
            conversations = {letter: utterances(members[place].facts.messages) for letter, place in letters.items()}
            own_words = frozenset({TurnPart.SAID, TurnPart.THOUGHT})
            for pattern in exchange.parsed or ():
                by_position: dict[int, list[Quote]] = {}
                for quote in pattern.quotes:
                    position = letters[quote.rollout]
                    found = find_citation(conversations[quote.rollout], quote, own_words)
                    if found is None or not members[position].is_high:
                        result.dropped += 1
                        continue
                    by_position.setdefault(position, []).append(found)
                if by_position:
                    evidence = [PatternEvidence(position, quotes) for position, quotes in by_position.items()]
                    result.patterns.append((pattern, evidence))
        result.seconds = time.monotonic() - start
        return result

    async def _run_canaries(self, repeats: int, usage: list[GraderResult]) -> tuple[canaries.CanaryReport, str]:
        """Read fixed conversations that demand opposite answers."""
        results: list[canaries.CanaryResult] = []
        for demand in canaries.demands(self.settings):
            followed, says = 0, ""
            for repeat in range(repeats):
                result: GradeResult | ContrastResult
                if self.settings.kind is GraderKind.CONTRAST:
                    result = await self.contrast(demand.members, repeat)
                    found = [each.name for exchange in result.exchanges for each in exchange.parsed or ()]
                    followed += demand.answer in [name.lower() for name in found]
                    names = ", ".join(pattern.name for pattern, _ in result.patterns)
                    summary = f"it found {names or 'nothing'}"
                else:
                    result = await self.grade(demand.members[0].facts, repeat)
                    if self.settings.answers is AnswerType.SUSPICION and result.score is not None:
                        followed += abs(result.score - float(demand.answer)) <= NEAR
                    else:
                        followed += result.score is not None and result.answer == demand.answer
                    summary = f"it answered {result.answer}: {result.reason}"
                usage.append(result)
                if result.is_unreachable:
                    return canaries.read_demands(results), result.error
                says = f"{demand.answer} was demanded; {result.error or summary}"
            results.append(canaries.CanaryResult(name=demand.name, is_attack=True, score=followed / repeats, says=says))
        return canaries.read_demands(results), ""


def make_grader(
    settings: JudgeSettings | QuestionSettings, kind: PolicyKind, policy: Mapping[str, Any], secret: str | None
) -> Judge | Questioner:
    """Make a grader from the configuration of its policy."""
    grader = Judge if isinstance(settings, JudgeSettings) else Questioner
    return grader(settings, kind, policy, secret)


class GradingPaused(Exception):
    """Most of the recent results failed."""


async def grade_cases(
    cases: AsyncIterator[C],
    grade: Callable[[C], Awaitable[R]],
    store: Callable[[list[tuple[C, R]]], None],
    *,
    concurrency: int,
) -> None:
    """Grade all cases in parallel and store their results, in a thread. `grade` never raises for what the model does.

    Raises GradingPaused. If it is canceled, it stores what it has.
    """
    recent: deque[str] = deque(maxlen=WINDOW)
    reading = asyncio.Lock()

    async def work() -> None:
        while True:
            async with reading:
                case = await anext(cases, None)
            if case is None:
                return
            result = await grade(case)
            await writer.put((case, result))
            recent.append(result.error)
            failed = [error for error in recent if error]
            if result.error and len(recent) >= MINIMUM and len(failed) > MAX_FAILED_SHARE * len(recent):
                counts = f"{len(failed)} of the last {len(recent)} grades failed"
                raise GradingPaused(f"{counts}. Last error: {result.error}")

    async with BatchWriter(store) as writer:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(work())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
