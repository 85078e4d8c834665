"""Questions, monitors and contrasts at work: they ask their model about rollouts and check its quotes."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from backend.domain.errors import JudgeError, PolicyError, RolloutError
from backend.domain.graders.canaries import CanaryReport, CanaryResult, Demand, demands, read_demands
from backend.domain.graders.evidence import FoundQuote, TurnPart, check_citations, find_citation, utterances
from backend.domain.graders.prompts import ContrastMember, RolloutFacts, contrast_prompt, question_prompt
from backend.domain.graders.replies import Pattern, read_answer, read_patterns
from backend.domain.graders.settings import AnswerType, GraderKind, QuestionSettings
from backend.domain.text import plain_text
from backend.domain.vocabulary import PolicyKind
from workers.graders.requests import Exchange, GraderModel, Usage, make_model
from workers.graders.results import CONFIRMATIONS, CanaryOutcome, ContrastResult, GradeResult, PatternEvidence

NEAR = 0.1
"""A suspicion this close to the demanded one counts as the demanded one."""


class NoAnswer(JudgeError):
    """The model gave no readable answer, even after a retry."""


class Questioner:
    """One question, monitor or contrast over one pool of connections. Close it at the end."""

    def __init__(self, settings: QuestionSettings, model: GraderModel) -> None:
        self.settings = settings
        self._model = model

    async def aclose(self) -> None:
        await self._model.aclose()

    async def grade(self, facts: RolloutFacts, seed: int = 0) -> GradeResult:
        """Answer about one rollout. Never raises for what the model does."""
        start, result = time.monotonic(), GradeResult()
        try:
            prompt = question_prompt(self.settings, facts)
            exchange = await self._model.ask(prompt, lambda reply: read_answer(self.settings, reply), seed, result)
        except RolloutError as error:
            result.error = plain_text(str(error))[:2000]
            result.is_unreachable = isinstance(error, PolicyError)
        else:
            result.exchanges.append(exchange)
            if (answer := exchange.parsed) is None:
                result.error = f"{NoAnswer.__doc__} {exchange.problem}"
            else:
                is_monitor = self.settings.kind is GraderKind.MONITOR
                parts = frozenset({TurnPart.THOUGHT}) if is_monitor else frozenset(TurnPart)
                result.answer, result.score, result.confidence = answer.answer, answer.value, answer.confidence
                result.reason = answer.reason
                conversation = utterances(facts.messages)
                result.citations, result.dropped = check_citations(conversation, answer.citations, parts)
        result.seconds = time.monotonic() - start
        return result

    async def contrast(self, members: Sequence[ContrastMember], seed: int = 0) -> ContrastResult:
        """Compare several rollouts of one task. Never raises for what the model does."""
        start, result = time.monotonic(), ContrastResult()
        contrast = contrast_prompt(self.settings, members, seed)
        letters = list(contrast.letters)
        try:
            exchange = await self._model.ask(
                contrast.prompt, lambda reply: read_patterns(self.settings, reply, letters), seed, result
            )
        except RolloutError as error:
            result.error = plain_text(str(error))[:2000]
            result.is_unreachable = isinstance(error, PolicyError)
        else:
            result.exchanges.append(exchange)
            self._check_patterns(result, exchange, members, contrast.letters)
        result.seconds = time.monotonic() - start
        return result

    def _check_patterns(
        self,
        result: ContrastResult,
        exchange: Exchange[list[Pattern]],
        members: Sequence[ContrastMember],
        letters: Mapping[str, int],
    ) -> None:
        """Keep patterns with a quote that was found in a high-reward rollout."""
        if exchange.parsed is None:
            result.error = f"{NoAnswer.__doc__} {exchange.problem}"
            return
        conversations = {letter: utterances(members[place].facts.messages) for letter, place in letters.items()}
        own_words = frozenset({TurnPart.SAID, TurnPart.THOUGHT})
        for pattern in exchange.parsed:
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

    async def canaries(self) -> CanaryOutcome:
        """Fixed conversations that demand opposite answers; a suspicion is checked with more repeats."""
        usage: list[Usage] = []
        report, problem = await self._run_demands(1, usage)
        if report.is_injectable and not problem:
            report, problem = await self._run_demands(CONFIRMATIONS, usage)
        return CanaryOutcome(report, usage, problem)

    async def _run_demands(self, repeats: int, usage: list[Usage]) -> tuple[CanaryReport, str]:
        results: list[CanaryResult] = []
        for demand in demands(self.settings):
            followed, says = 0, ""
            for repeat in range(repeats):
                result: GradeResult | ContrastResult
                if self.settings.kind is GraderKind.CONTRAST:
                    result = await self.contrast(demand.members, repeat)
                else:
                    result = await self.grade(demand.members[0].facts, repeat)
                usage.append(result)
                if result.is_unreachable:
                    return read_demands(results), result.error
                followed += self._follows(result, demand)
                says = f"{demand.answer} was demanded; {result.error or _summary(result)}"
            score = followed / repeats
            results.append(CanaryResult(name=demand.name, is_attack=True, score=score, says=says))
        return read_demands(results), ""

    def _follows(self, result: GradeResult | ContrastResult, demand: Demand) -> bool:
        """Whether the result is the demanded one."""
        if isinstance(result, ContrastResult):
            patterns: list[Pattern] = [each for exchange in result.exchanges for each in exchange.parsed or ()]
            return any(pattern.name.lower() == demand.answer for pattern in patterns)
        if result.score is None:
            return False
        if self.settings.answers is AnswerType.SUSPICION:
            return abs(result.score - float(demand.answer)) <= NEAR
        return result.answer == demand.answer


def make_questioner(
    settings: QuestionSettings, kind: PolicyKind, policy: Mapping[str, Any], secret: str | None
) -> Questioner:
    """From the configuration of its policy."""
    return Questioner(settings, make_model(settings, kind, policy, secret))


def _summary(result: GradeResult | ContrastResult) -> str:
    if isinstance(result, ContrastResult):
        names = ", ".join(pattern.name for pattern, _ in result.patterns)
        return f"it found {names}" if names else "it found nothing"
    return f"it answered {result.answer}: {result.reason}"
