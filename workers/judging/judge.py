"""A model judge at work: it asks a policy about what others did, and understands its verdict or says why not."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from backend.domain.errors import JudgeError, PolicyError, RolloutError
from backend.domain.judge_prompts import Facts, Question, ask_again, canaries, question, steps_of
from backend.domain.judges import JudgeConfiguration, Target, Verdict, fold_verdicts, read_verdict, response_format
from backend.domain.judging_record import CanaryReport, CanaryResult, read_canaries
from backend.domain.manifest import Manifest
from backend.domain.plans import Sampling
from backend.domain.prices import cost_of
from backend.domain.rollouts import task_of
from backend.domain.text import plain_text
from backend.domain.vocabulary import PolicyKind, Split
from workers.policies import make_policy
from workers.policies.base import EpisodeStart, Policy, Reply, Turn

CONFIRMING = 3
"""Repeats of each canary once one of them has moved the judge."""
MAX_RAW = 20_000
"""Characters of a judge's own words that are kept."""
_MANIFEST = Manifest.model_validate(
    {"name": "judging", "proctor": {"agent": {"action": {"field": "text"}}, "rewards": {"score": 1.0}}}
)
"""Of no environment: policies are asked by way of an episode."""


class JudgeGaveNoVerdict(JudgeError):
    """The judge was asked twice and gave no verdict."""


@dataclass(slots=True)
class Answered:
    """One repeat: what was asked, what came back, what it means."""

    question: Question
    replies: list[str]
    """The last one was read; the one before it was no verdict."""
    verdict: Verdict | None
    problem: str = ""


@dataclass(slots=True)
class Judged:
    """All repeats on one thing. Without a score it failed, and `error` says why."""

    score: float | None = None
    spread: float | None = None
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    """As they are stored."""
    error: str = ""
    is_unreachable: bool = False
    """The judge did not answer at all."""
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float | None = None
    seconds: float = 0.0
    answered: list[Answered] = field(default_factory=list)


class Judge:
    """One judge over one pool of connections. Close it at the end."""

    def __init__(self, configuration: JudgeConfiguration, policy: Policy, strict: Policy | None, price: Any) -> None:
        self.configuration = configuration
        self._policy = policy
        self._strict = strict
        """The same policy, made to keep to the verdict's schema; None once it has refused."""
        self._price = price

    async def aclose(self) -> None:
        await self._policy.aclose()
        if self._strict is not None:
            await self._strict.aclose()

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

    async def _ask(self, facts: Facts, seed: int, judged: Judged) -> Answered:
        asked = question(self.configuration, facts)
        replies: list[str] = []
        problem = ""
        for _ in range(2):
            reply = await self._reply(asked, seed)
            judged.tokens_in += reply.tokens_in
            judged.tokens_out += reply.tokens_out
            judged.cost = _sum(judged.cost, cost_of(self._price, reply.tokens_in, reply.tokens_out, reply.cached_in))
            replies.append(reply.text)
            try:
                verdict = read_verdict(self.configuration, reply.text, asked.steps)
            except JudgeError as error:
                problem = f"{error} (it was cut at the token limit)" if reply.is_truncated else str(error)
                asked = ask_again(asked, reply.text, problem)
                continue
            return Answered(asked, replies, verdict)
        return Answered(asked, replies, None, problem)

    async def _reply(self, asked: Question, seed: int) -> Reply:
        if self._strict is not None:
            try:
                return await self._reply_of(self._strict, asked, seed)
            except PolicyError as error:
                if not _is_about_schema(str(error)):
                    raise
                strict, self._strict = self._strict, None
                await strict.aclose()
        return await self._reply_of(self._policy, asked, seed)

    async def _reply_of(self, policy: Policy, asked: Question, seed: int) -> Reply:
        player = await policy.begin(EpisodeStart(task_of(_MANIFEST, Split.TRAIN, 0), _MANIFEST, 0, seed))
        try:
            text = str(asked.messages[-1]["content"])
            return await player.act(Turn(0, asked.messages, text, {}, {}, {}, max_tokens=self.configuration.max_tokens))
        finally:
            player.close()

    def _sum_up(self, judged: Judged, facts: Facts) -> None:
        """One repeat without a verdict fails the whole: a mean over what happened to be readable would mislead."""
        judged.verdicts = [self._stored(answered, facts) for answered in judged.answered]
        lacking = [answered.problem for answered in judged.answered if answered.verdict is None]
        if lacking and not judged.error:
            judged.error = f"{JudgeGaveNoVerdict.__doc__} {lacking[0]}"
        if judged.error or not judged.answered:
            return
        agreed = fold_verdicts([answered.verdict for answered in judged.answered if answered.verdict])
        judged.score, judged.spread = agreed.score, agreed.spread

    def _stored(self, answered: Answered, facts: Facts) -> dict[str, Any]:
        raw = plain_text(answered.replies[-1])[:MAX_RAW] if answered.replies else ""
        if answered.verdict is None:
            return {"error": answered.problem, "raw": raw}
        stored = asdict(answered.verdict) | {"asked": len(answered.replies)}
        if self.configuration.target is Target.STEPS:
            stored["unit"] = steps_of(facts, with_reasoning=self.configuration.shows_reasoning)[0]
        return {name: value for name, value in stored.items() if value not in ({}, [])}


def make_judge(
    configuration: JudgeConfiguration, kind: PolicyKind, policy: Mapping[str, Any], secret: str | None
) -> Judge:
    """Any policy that is asked over the network, or a script."""
    sampling = Sampling(temperature=configuration.temperature, max_tokens_per_turn=configuration.max_tokens)
    plain = make_policy(kind, policy, secret, sampling)
    strict = None
    if kind is PolicyKind.OPENAI_API:
        extra = {**(policy.get("extra") or {}), "response_format": response_format(configuration)}
        strict = make_policy(kind, {**policy, "extra": extra}, secret, sampling)
    return Judge(configuration, plain, strict, policy.get("price"))


def _is_about_schema(error: str) -> bool:
    return any(word in error.lower() for word in ("response_format", "json_schema", "json schema", "guided", "grammar"))


def _sum(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other
