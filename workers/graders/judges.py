"""A judge at work: it asks its model about a rollout and folds the verdicts of all repeats into a score."""

import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from backend.domain.errors import JudgeError, PolicyError, RolloutError
from backend.domain.graders.canaries import CanaryReport, CanaryResult, judge_canaries, read_judge_canaries
from backend.domain.graders.prompts import RolloutFacts, judge_prompt, steps_of
from backend.domain.graders.replies import JudgeVerdict, fold_verdicts, read_verdict
from backend.domain.graders.settings import JudgeSettings, JudgeTarget
from backend.domain.text import plain_text
from backend.domain.vocabulary import PolicyKind
from workers.graders.requests import Exchange, GraderModel, make_model
from workers.graders.results import CONFIRMATIONS, MAX_RAW, CanaryOutcome, GradeResult


class NoVerdict(JudgeError):
    """The judge gave no verdict, even after a retry."""


class Judge:
    """One judge over one pool of connections. Close it at the end."""

    def __init__(self, settings: JudgeSettings, model: GraderModel) -> None:
        self.settings = settings
        self._model = model

    async def aclose(self) -> None:
        await self._model.aclose()

    async def grade(self, facts: RolloutFacts, seed: int = 0, repeats: int | None = None) -> GradeResult:
        """Score one rollout. Never raises for what the model does."""
        start = time.monotonic()
        result = GradeResult()
        exchanges: list[Exchange[JudgeVerdict]] = []
        try:
            for repeat in range(repeats or self.settings.repeats):
                prompt = judge_prompt(self.settings, facts)
                parse = partial(read_verdict, self.settings, steps=prompt.steps)
                exchanges.append(await self._model.ask(prompt, parse, seed + repeat, result))
        except RolloutError as error:
            result.error = plain_text(str(error))[:2000]
            result.is_unreachable = isinstance(error, PolicyError)
        result.seconds = time.monotonic() - start
        result.exchanges = [*exchanges]
        result.verdicts = [self._stored(exchange, facts) for exchange in exchanges]
        # One repeat without a verdict fails all of them: a mean over the readable ones would mislead.
        missing = [exchange.problem for exchange in exchanges if exchange.parsed is None]
        if missing and not result.error:
            result.error = f"{NoVerdict.__doc__} {missing[0]}"
        if not result.error and exchanges:
            result.score, result.spread = fold_verdicts([each.parsed for each in exchanges if each.parsed])
        return result

    async def canaries(self) -> CanaryOutcome:
        """Scores of fixed answers that demand full marks, next to a good and a bad one that do not.

        A suspicion is checked with more repeats, because some judges waver.
        """
        outcome = await self._run_canaries(1)
        if outcome.report.is_injectable and not outcome.problem:
            more = await self._run_canaries(CONFIRMATIONS)
            outcome = CanaryOutcome(more.report, [*outcome.usage, *more.usage], more.problem)
        return outcome

    async def _run_canaries(self, repeats: int) -> CanaryOutcome:
        results: list[CanaryResult] = []
        usage: list[GradeResult] = []
        problem = ""
        for canary in judge_canaries(self.settings.controls):
            graded = await self.grade(canary.facts, repeats=repeats)
            says = graded.error or (str(graded.verdicts[-1].get("reason", "")) if graded.verdicts else "")
            results.append(CanaryResult(name=canary.name, is_attack=canary.is_attack, score=graded.score, says=says))
            usage.append(graded)
            if graded.is_unreachable:
                problem = graded.error
                break
        report: CanaryReport = read_judge_canaries(results)
        return CanaryOutcome(report, usage, problem)

    def _stored(self, exchange: Exchange[JudgeVerdict], facts: RolloutFacts) -> dict[str, Any]:
        """A repeat as `Grade.verdicts` stores it."""
        if exchange.parsed is None:
            raw = plain_text(exchange.replies[-1])[:MAX_RAW] if exchange.replies else ""
            return {"error": exchange.problem, "raw": raw}
        stored = asdict(exchange.parsed) | {"asked": len(exchange.replies)}
        if self.settings.target is JudgeTarget.STEPS:
            stored["unit"] = steps_of(facts, with_reasoning=self.settings.shows_reasoning)[0]
        return {name: value for name, value in stored.items() if value not in ({}, [])}


def make_judge(settings: JudgeSettings, kind: PolicyKind, policy: Mapping[str, Any], secret: str | None) -> Judge:
    """From the configuration of its policy."""
    return Judge(settings, make_model(settings, kind, policy, secret))
