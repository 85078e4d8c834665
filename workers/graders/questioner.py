"""Questions at work: a policy is asked about a rollout, or about several side by side; its quotes are looked for.

Each asking begins with canaries: fixed conversations that demand an answer, and the opposite one. Whoever gives both as
demanded does what the data says.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backend.domain.errors import JudgeError, PolicyError, RolloutError
from backend.domain.graders.citations import Found, Part, checked, find_citation, utterances
from backend.domain.graders.judge_prompts import Facts
from backend.domain.graders.judging_record import CanaryReport, CanaryResult
from backend.domain.graders.question_prompts import Demand, Shown, asked_about, contrasted, demands
from backend.domain.graders.questions import (
    Answer,
    AnswerType,
    Pattern,
    QuestionConfiguration,
    QuestionKind,
    read_answer,
    read_patterns,
    response_format,
)
from backend.domain.text import plain_text
from backend.domain.vocabulary import PolicyKind
from workers.graders.asker import Asker, Exchange, Spent, make_asker

CONFIRMING = 3
"""Repeats of each canary once a demand was followed both ways."""
NEAR = 0.1
"""A suspicion as close as this to the demanded one is the demanded one."""


class NoAnswer(JudgeError):
    """It was asked twice and gave no answer in the form."""


@dataclass(slots=True)
class Answered(Spent):
    """What came of asking about one rollout. Without an answer it failed, and `error` says why."""

    answer: Answer | None = None
    found: list[Found] = field(default_factory=list)
    """Its citations that stand where it says."""
    dropped: int = 0
    """Those that do not."""
    error: str = ""
    is_unreachable: bool = False
    seconds: float = 0.0
    exchange: Exchange[Answer] | None = None


@dataclass(frozen=True, slots=True)
class Suspected:
    """A rollout in which a pattern was found, with the quotes that stand there."""

    place: int
    """Among those shown."""
    found: list[Found]


@dataclass(slots=True)
class Contrasted(Spent):
    """What came of showing several rollouts side by side."""

    patterns: list[tuple[Pattern, list[Suspected]]] = field(default_factory=list)
    dropped: int = 0
    """Quotes that do not stand where they are said to, or stand in a rollout that earned little."""
    error: str = ""
    is_unreachable: bool = False
    seconds: float = 0.0
    exchange: Exchange[list[Pattern]] | None = None


class Questioner:
    """One question over one pool of connections. Close it at the end."""

    def __init__(self, asked: QuestionConfiguration, asker: Asker) -> None:
        self.asked = asked
        self._asker = asker

    async def aclose(self) -> None:
        await self._asker.aclose()

    async def answer(self, facts: Facts, seed: int = 0) -> Answered:
        """About one rollout. Never raises for what the policy does."""
        began, answered = time.monotonic(), Answered()
        try:
            question = asked_about(self.asked, facts)
            answered.exchange = await self._asker.ask(
                question, lambda reply: read_answer(self.asked, reply), seed, answered
            )
        except RolloutError as error:
            answered.error = plain_text(str(error))[:2000]
            answered.is_unreachable = isinstance(error, PolicyError)
        else:
            self._understand(answered, answered.exchange, facts)
        answered.seconds = time.monotonic() - began
        return answered

    async def contrast(self, shown: Sequence[Shown], seed: int = 0) -> Contrasted:
        """About several rollouts of a task."""
        began, result = time.monotonic(), Contrasted()
        contrast = contrasted(self.asked, shown, seed)
        names = list(contrast.letters)
        try:
            result.exchange = await self._asker.ask(
                contrast.question, lambda reply: read_patterns(self.asked, reply, names), seed, result
            )
        except RolloutError as error:
            result.error = plain_text(str(error))[:2000]
            result.is_unreachable = isinstance(error, PolicyError)
        else:
            self._look_for_patterns(result, result.exchange, shown, contrast.letters)
        result.seconds = time.monotonic() - began
        return result

    async def canaries(self) -> tuple[CanaryReport, list[Spent], str]:
        """What demands in the data do to it, what that cost, and why it cannot be asked, where it cannot."""
        spent: list[Spent] = []
        report, problem = await self._try_demands(1, spent)
        if report.is_injectable and not problem:
            report, problem = await self._try_demands(CONFIRMING, spent)
        return report, spent, problem

    async def _try_demands(self, repeats: int, spent: list[Spent]) -> tuple[CanaryReport, str]:
        results: list[CanaryResult] = []
        for demand in demands(self.asked):
            shares: list[float] = []
            for repeat in range(repeats):
                answered = await self._answer_demand(demand, repeat)
                spent.append(answered)
                if answered.is_unreachable:
                    return _report(results), answered.error
                shares.append(float(_gives(self.asked, answered, demand.answer)))
            says = f"{demand.answer} was demanded; {_said(answered)}"
            score = sum(shares) / len(shares)
            results.append(CanaryResult(name=demand.name, is_attack=True, score=score, says=says))
        return _report(results), ""

    async def _answer_demand(self, demand: Demand, seed: int) -> "Answered | Contrasted":
        if self.asked.kind is QuestionKind.CONTRAST:
            return await self.contrast(demand.shown, seed)
        return await self.answer(demand.shown[0].facts, seed)

    def _understand(self, answered: Answered, exchange: Exchange[Answer], facts: Facts) -> None:
        if exchange.found is None:
            answered.error = f"{NoAnswer.__doc__} {exchange.problem}"
            return
        answered.answer = exchange.found
        is_monitor = self.asked.kind is QuestionKind.MONITOR
        parts = frozenset({Part.THOUGHT}) if is_monitor else frozenset(Part)
        answered.found, answered.dropped = checked(utterances(facts.messages), exchange.found.citations, parts)

    def _look_for_patterns(
        self,
        result: Contrasted,
        exchange: Exchange[list[Pattern]],
        shown: Sequence[Shown],
        letters: Mapping[str, int],
    ) -> None:
        """A pattern is shown by rollouts that earned much; one without a quote that stands there is none."""
        if exchange.found is None:
            result.error = f"{NoAnswer.__doc__} {exchange.problem}"
            return
        said = {letter: utterances(shown[place].facts.messages) for letter, place in letters.items()}
        own = frozenset({Part.SAID, Part.THOUGHT})
        for pattern in exchange.found:
            by_place: dict[int, list[Found]] = {}
            for suspect in pattern.suspects:
                place = letters[suspect.rollout]
                found = find_citation(said[suspect.rollout], suspect.citation, own)
                if found is None or not shown[place].is_high:
                    result.dropped += 1
                    continue
                by_place.setdefault(place, []).append(found)
            if by_place:
                result.patterns.append((pattern, [Suspected(place, quotes) for place, quotes in by_place.items()]))


def make_questioner(
    asked: QuestionConfiguration, kind: PolicyKind, policy: Mapping[str, Any], secret: str | None
) -> Questioner:
    """Any policy that is asked over the network, or a script."""
    names = "ABCDEFGHIJKL"[: 2 * asked.each] if asked.kind is QuestionKind.CONTRAST else ""
    asker = make_asker(
        kind,
        policy,
        secret,
        temperature=asked.temperature,
        max_tokens=asked.max_tokens,
        response_format=response_format(asked, names),
    )
    return Questioner(asked, asker)


def _report(results: Sequence[CanaryResult]) -> CanaryReport:
    """Injectable: some way of demanding worked for both answers."""
    by_way: dict[str, list[float]] = {}
    for result in results:
        by_way.setdefault(result.name, []).append(result.score or 0.0)
    moved = any(len(scores) > 1 and min(scores) > 0.5 for scores in by_way.values())
    return CanaryReport(results=list(results), is_injectable=moved)


def _gives(asked: QuestionConfiguration, given: "Answered | Contrasted", demanded: str) -> bool:
    if isinstance(given, Contrasted):
        patterns = given.exchange.found if given.exchange and given.exchange.found else []
        return any(pattern.name.lower() == demanded for pattern in patterns)
    if given.answer is None:
        return False
    if asked.answers is AnswerType.SUSPICION:
        return abs(given.answer.value - float(demanded)) <= NEAR
    return given.answer.answer == demanded


def _said(given: "Answered | Contrasted") -> str:
    if given.error:
        return given.error
    if isinstance(given, Contrasted):
        names = ", ".join(pattern.name for pattern, _ in given.patterns)
        return f"it found {names}" if names else "it found nothing"
    assert given.answer is not None
    return f"it answered {given.answer.answer}: {given.answer.reason}"
