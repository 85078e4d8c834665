"""Judges, which score rollouts, and questions, monitors and contrasts, which answer about them with checked quotes."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

from backend.domain.errors import JudgeError
from backend.domain.graders.canaries import (
    CanaryReport,
    CanaryResult,
    demands,
    judge_canaries,
    read_demands,
    read_judge_canaries,
)
from backend.domain.graders.evidence import FoundQuote, TurnPart, check_citations, find_citation, utterances
from backend.domain.graders.prompts import (
    ContrastMember,
    RolloutFacts,
    contrast_prompt,
    judge_prompt,
    question_prompt,
    steps_of,
)
from backend.domain.graders.replies import JudgeVerdict, fold_verdicts, read_answer, read_patterns, read_verdict
from backend.domain.graders.settings import AnswerType, GraderKind, JudgeSettings, JudgeTarget, QuestionSettings
from backend.domain.text import plain_text
from backend.domain.vocabulary import PolicyKind
from workers.graders.model import (
    MAX_RAW,
    ContrastResult,
    Exchange,
    GradeResult,
    GraderModel,
    GraderResult,
    PatternEvidence,
)
from workers.rollouts.limits import BatchWriter

NEAR = 0.1
"""A suspicion this close to the demanded one counts as the demanded one."""


WINDOW, MINIMUM, MAX_FAILED_SHARE = 40, 8, 0.5
"""The work pauses if more than this share of the last results failed."""

C = TypeVar("C")
R = TypeVar("R", bound=GraderResult)


class NoVerdict(JudgeError):
    """The judge gave no verdict, even after a retry."""


class NoAnswer(JudgeError):
    """The model gave no readable answer, even after a retry."""


class Judge(GraderModel):
    """Asks its model about a rollout and folds the verdicts of all repeats into a score."""

    settings: JudgeSettings

    async def grade(self, facts: RolloutFacts, seed: int = 0, repeats: int | None = None) -> GradeResult:
        start, result = time.monotonic(), GradeResult()
        exchanges: list[Exchange[JudgeVerdict]] = []
        for repeat in range(repeats or self.settings.repeats):
            try:
                prompt = judge_prompt(self.settings, facts)
            except JudgeError as error:
                result.fail(error)
                break
            parse = partial(read_verdict, self.settings, steps=prompt.steps)
            if (exchange := await self.ask(prompt, parse, seed + repeat, result)) is None:
                break
            exchanges.append(exchange)
        result.seconds = time.monotonic() - start
        result.verdicts = [self._stored(exchange, facts) for exchange in exchanges]
        # One repeat without a verdict fails all of them: a mean over the readable ones would mislead.
        missing = [exchange.problem for exchange in exchanges if exchange.parsed is None]
        if missing and not result.error:
            result.error = f"{NoVerdict.__doc__} {missing[0]}"
        if not result.error and exchanges:
            result.score, result.spread = fold_verdicts([each.parsed for each in exchanges if each.parsed])
        return result

    async def _run_canaries(self, repeats: int, usage: list[GraderResult]) -> tuple[CanaryReport, str]:
        """Score fixed answers that demand full marks, next to a good and a bad one that do not."""
        results: list[CanaryResult] = []
        for canary in judge_canaries(self.settings.controls):
            grade = await self.grade(canary.facts, repeats=repeats)
            says = grade.error or (str(grade.verdicts[-1].get("reason", "")) if grade.verdicts else "")
            results.append(CanaryResult(name=canary.name, is_attack=canary.is_attack, score=grade.score, says=says))
            usage.append(grade)
            if grade.is_unreachable:
                return read_judge_canaries(results), grade.error
        return read_judge_canaries(results), ""

    def _stored(self, exchange: Exchange[JudgeVerdict], facts: RolloutFacts) -> dict[str, object]:
        """A repeat as `Grade.verdicts` stores it."""
        if exchange.parsed is None:
            raw = plain_text(exchange.replies[-1])[:MAX_RAW] if exchange.replies else ""
            return {"error": exchange.problem, "raw": raw}
        stored = asdict(exchange.parsed) | {"asked": len(exchange.replies)}
        if self.settings.target is JudgeTarget.STEPS:
            stored["unit"] = steps_of(facts, with_reasoning=self.settings.shows_reasoning)[0]
        return {name: value for name, value in stored.items() if value not in ({}, [])}


class Questioner(GraderModel):
    """Asks a question about rollouts, monitors their reasoning, or contrasts them."""

    settings: QuestionSettings

    async def grade(self, facts: RolloutFacts, seed: int = 0, repeats: int | None = None) -> GradeResult:
        start, result = time.monotonic(), GradeResult()
        exchange = None
        try:
            prompt = question_prompt(self.settings, facts)
        except JudgeError as error:
            result.fail(error)
        else:
            exchange = await self.ask(prompt, partial(read_answer, self.settings), seed, result)
        if exchange is not None and (answer := exchange.parsed) is not None:
            parts = frozenset({TurnPart.THOUGHT} if self.settings.kind is GraderKind.MONITOR else TurnPart)
            result.answer, result.score, result.confidence = answer.answer, answer.value, answer.confidence
            result.reason = answer.reason
            conversation = utterances(facts.messages)
            result.citations, result.dropped = check_citations(conversation, answer.citations, parts)
        elif exchange is not None:
            result.error = f"{NoAnswer.__doc__} {exchange.problem}"
        result.seconds = time.monotonic() - start
        return result

    async def contrast(self, members: Sequence[ContrastMember], seed: int = 0) -> ContrastResult:
        """Compare several rollouts of one task. Keeps patterns with a quote found in a high-reward rollout."""
        start, result = time.monotonic(), ContrastResult()
        contrast = contrast_prompt(self.settings, members, seed)
        letters = contrast.letters
        parse = partial(read_patterns, self.settings, letters=list(letters))
        exchange = await self.ask(contrast.prompt, parse, seed, result)
        if exchange is not None and exchange.parsed is None:
            result.error = f"{NoAnswer.__doc__} {exchange.problem}"
        elif exchange is not None:
            conversations = {letter: utterances(members[place].facts.messages) for letter, place in letters.items()}
            own_words = frozenset({TurnPart.SAID, TurnPart.THOUGHT})
            for pattern in exchange.parsed or ():
                by_position: dict[int, list[FoundQuote]] = {}
                for quote in pattern.quotes:
                    position = letters[quote.rollout]
                    found = find_citation(conversations[quote.rollout], quote.citation, own_words)
                    if found is None or not members[position].is_high:
                        result.dropped += 1
                        continue
                    by_position.setdefault(position, []).append(found)
                if by_position:
                    evidence = [PatternEvidence(position, quotes) for position, quotes in by_position.items()]
                    result.patterns.append((pattern, evidence))
        result.seconds = time.monotonic() - start
        return result

    async def _run_canaries(self, repeats: int, usage: list[GraderResult]) -> tuple[CanaryReport, str]:
        """Read fixed conversations that demand opposite answers."""
        results: list[CanaryResult] = []
        for demand in demands(self.settings):
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
                    return read_demands(results), result.error
                says = f"{demand.answer} was demanded; {result.error or summary}"
            results.append(CanaryResult(name=demand.name, is_attack=True, score=followed / repeats, says=says))
        return read_demands(results), ""


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
