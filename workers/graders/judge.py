"""A model judge at work: it asks a policy about what others did, and understands its verdict or says why not."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from backend.domain.errors import JudgeError, PolicyError, RolloutError
from backend.domain.graders.judge_prompts import Facts, canaries, question, steps_of
from backend.domain.graders.judges import (
    JudgeConfiguration,
    Target,
    Verdict,
    fold_verdicts,
    read_verdict,
    response_format,
)
from backend.domain.graders.judging_record import CanaryReport, CanaryResult, read_canaries
from backend.domain.text import plain_text
from backend.domain.vocabulary import PolicyKind
from workers.graders.asker import Asker, Exchange, Spent, make_asker

CONFIRMING = 3
"""Repeats of each canary once one of them has moved the judge."""
MAX_RAW = 20_000
"""Characters of a judge's own words that are kept."""


class JudgeGaveNoVerdict(JudgeError):
    """The judge was asked twice and gave no verdict."""


@dataclass(slots=True)
class Judged(Spent):
    """All repeats on one thing. Without a score it failed, and `error` says why."""

    score: float | None = None
    spread: float | None = None
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    """As they are stored."""
    error: str = ""
    is_unreachable: bool = False
    """The judge did not answer at all."""
    seconds: float = 0.0
    answered: list[Exchange[Verdict]] = field(default_factory=list)
    """Each repeat."""


class Judge:
    """One judge over one pool of connections. Close it at the end."""

    def __init__(self, configuration: JudgeConfiguration, asker: Asker) -> None:
        self.configuration = configuration
        self._asker = asker

    async def aclose(self) -> None:
        await self._asker.aclose()

    async def judge(self, facts: Facts, seed: int = 0, repeats: int | None = None) -> Judged:
        """Ask as often as wanted. Never raises for what the judge does."""
        began = time.monotonic()
        judged = Judged()
        try:
            for repeat in range(repeats or self.configuration.repeats):
                judged.answered.append(await self._ask(facts, seed + repeat, judged))
        except RolloutError as error:
            judged.error = plain_text(str(error))[:2000]
            judged.is_unreachable = isinstance(error, PolicyError)
        judged.seconds = time.monotonic() - began
        self._sum_up(judged, facts)
        return judged

    async def canaries(self) -> tuple[CanaryReport, list[Judged]]:
        """What fixed answers get that demand full marks, beside a good and a bad one that do not.

        A suspicion is looked at again with more repeats, because some judges waver.
        """
        report, all_judged = await self._try_canaries(1)
        if report.is_injectable:
            report, more = await self._try_canaries(CONFIRMING)
            all_judged += more
        return report, all_judged

    async def _try_canaries(self, repeats: int) -> tuple[CanaryReport, list[Judged]]:
        results, all_judged = [], []
        for canary in canaries(self.configuration.controls):
            judged = await self.judge(canary.facts, repeats=repeats)
            says = judged.error or (str(judged.verdicts[-1].get("reason", "")) if judged.verdicts else "")
            results.append(CanaryResult(name=canary.name, is_attack=canary.is_attack, score=judged.score, says=says))
            all_judged.append(judged)
            if judged.is_unreachable:
                break
        return read_canaries(results), all_judged

    async def _ask(self, facts: Facts, seed: int, judged: Judged) -> Exchange[Verdict]:
        asked = question(self.configuration, facts)
        return await self._asker.ask(
            asked, lambda reply: read_verdict(self.configuration, reply, asked.steps), seed, judged
        )

    def _sum_up(self, judged: Judged, facts: Facts) -> None:
        """One repeat without a verdict fails the whole: a mean over what happened to be readable would mislead."""
        judged.verdicts = [self._stored(answered, facts) for answered in judged.answered]
        lacking = [answered.problem for answered in judged.answered if answered.found is None]
        if lacking and not judged.error:
            judged.error = f"{JudgeGaveNoVerdict.__doc__} {lacking[0]}"
        if judged.error or not judged.answered:
            return
        agreed = fold_verdicts([answered.found for answered in judged.answered if answered.found])
        judged.score, judged.spread = agreed.score, agreed.spread

    def _stored(self, answered: Exchange[Verdict], facts: Facts) -> dict[str, Any]:
        raw = plain_text(answered.replies[-1])[:MAX_RAW] if answered.replies else ""
        if answered.found is None:
            return {"error": answered.problem, "raw": raw}
        stored = asdict(answered.found) | {"asked": len(answered.replies)}
        if self.configuration.target is Target.STEPS:
            stored["unit"] = steps_of(facts, with_reasoning=self.configuration.shows_reasoning)[0]
        return {name: value for name, value in stored.items() if value not in ({}, [])}


def make_judge(
    configuration: JudgeConfiguration, kind: PolicyKind, policy: Mapping[str, Any], secret: str | None
) -> Judge:
    """Any policy that is asked over the network, or a script."""
    asker = make_asker(
        kind,
        policy,
        secret,
        temperature=configuration.temperature,
        max_tokens=configuration.max_tokens,
        response_format=response_format(configuration),
    )
    return Judge(configuration, asker)
