"""A judge over the network: verdicts, repeated requests, cost; failures never become zeros."""

import asyncio
from typing import Any

import pytest

from backend.domain.graders.canaries import CanaryReport
from backend.domain.graders.prompts import RolloutFacts
from backend.domain.graders.settings import JudgeSettings
from backend.domain.vocabulary import PolicyKind
from tests.graders.fake import FakeJudge, blocks, gullible, late, serving, sober, talkative, wavering
from workers.graders.graders import GradeResult, Judge, make_grader

PRICE = {"input": 1.0, "output": 10.0}


def facts(answer: str) -> RolloutFacts:
    return RolloutFacts([{"role": "user", "content": "17 + 25?"}, {"role": "assistant", "content": answer}])


def use(fake: FakeJudge, what: Any, **configuration: Any) -> Any:
    """Do something with a judge behind this endpoint."""

    async def main() -> Any:
        policy = {"base_url": fake.url, "model": "m", "attempts": 1, "price": PRICE}
        judge = make_grader(JudgeSettings(**configuration), PolicyKind.OPENAI_API, policy, None)
        try:
            return await what(judge)
        finally:
            await judge.aclose()

    with serving(fake):
        return asyncio.run(main())


def ask(fake: FakeJudge, answer: str = "= 42", **configuration: Any) -> GradeResult:
    async def what(judge: Judge) -> GradeResult:
        return await judge.grade(facts(answer), seed=5)

    found: GradeResult = use(fake, what, **configuration)
    return found


def try_canaries(fake: FakeJudge) -> CanaryReport:
    async def what(judge: Judge) -> CanaryReport:
        return (await judge.run_canaries())[0]

    report: CanaryReport = use(fake, what)
    return report


def test_a_verdict_is_read_with_its_reason_tokens_and_cost() -> None:
    fake = FakeJudge()
    judged = ask(fake)
    assert (judged.score, judged.spread, judged.error) == (1.0, None, "")
    assert judged.verdicts == [{"score": 1.0, "reason": "I looked.", "asked": 1}]
    assert (judged.tokens_in, judged.tokens_out) == (100, 10)
    assert judged.cost == pytest.approx(0.0002)
    [body] = fake.bodies
    assert body["response_format"]["json_schema"]["schema"]["required"] == ["reason", "score"]
    assert body["temperature"] == 0.0
    assert blocks(body)["answer"] == "= 42"


def test_a_bad_answer_is_a_zero_that_a_judge_gave() -> None:
    assert ask(FakeJudge(), "= 9").score == 0.0


def test_an_endpoint_without_schemas_is_reported_the_form_with_a_message() -> None:
    fake = FakeJudge(refuses_schema=True)

    async def twice(judge: Judge) -> list[GradeResult]:
        return [await judge.grade(facts("= 42")), await judge.grade(facts("= 9"))]

    assert [judged.score for judged in use(fake, twice)] == [1.0, 0.0]
    assert ["response_format" in body for body in fake.bodies] == [True, False, False]


def test_what_is_no_verdict_is_requested_once_more() -> None:
    fake = FakeJudge(late)
    judged = ask(fake)
    assert judged.score == 1.0
    assert judged.tokens_in == 200
    assert judged.verdicts[0]["asked"] == 2
    assert "That was no verdict" in fake.bodies[1]["messages"][-1]["content"]


def test_no_verdict_at_all_is_a_failure_without_a_score() -> None:
    fake = FakeJudge(talkative)
    judged = ask(fake)
    assert judged.score is None
    assert "gave no verdict" in judged.error
    assert not judged.is_unreachable
    assert "7 out of 10" in judged.verdicts[0]["raw"]
    assert len(fake.bodies) == 2


def test_a_judge_that_cannot_be_asked_is_a_failure_without_a_score() -> None:
    judged = ask(FakeJudge(status=500))
    assert judged.score is None
    assert judged.is_unreachable
    assert "500" in judged.error


def test_repeats_give_a_mean_and_a_spread() -> None:
    fake = FakeJudge(wavering)
    judged = ask(fake, repeats=4, temperature=1.0)
    assert judged.score == pytest.approx(0.25)
    assert judged.spread == pytest.approx(0.2887, abs=1e-4)
    assert len({body["seed"] for body in fake.bodies}) == 4


def test_one_repeat_without_a_verdict_fails_the_whole() -> None:
    def mostly(judge: FakeJudge, body: dict[str, Any]) -> str:
        return sober(judge, body) if len(judge.bodies) == 1 else talkative(judge, body)

    judged = ask(FakeJudge(mostly), repeats=2)
    assert judged.score is None
    assert [("error" in verdict) for verdict in judged.verdicts] == [False, True]


def test_a_sober_judge_passes_the_canaries() -> None:
    report = try_canaries(FakeJudge(sober))
    assert not report.is_injectable
    assert report.tells_apart
    assert {result.name: result.score for result in report.results} == {
        "good": 1.0,
        "bad": 0.0,
        "order": 0.0,
        "system": 0.0,
        "verdict": 0.0,
    }


def test_a_gullible_judge_is_caught() -> None:
    report = try_canaries(FakeJudge(gullible))
    assert report.is_injectable
    assert report.tells_apart


def test_a_judge_that_wavers_once_is_not_called_gullible() -> None:
    def wavers_at_the_third(judge: FakeJudge, body: dict[str, Any]) -> str:
        return '{"reason": "Hm.", "score": 1}' if len(judge.bodies) == 3 else sober(judge, body)

    fake = FakeJudge(wavers_at_the_third)
    assert not try_canaries(fake).is_injectable
    assert len(fake.bodies) == 5 + 3 * 5


def test_a_judge_that_likes_everything_does_not_distinguish() -> None:
    report = try_canaries(FakeJudge(lambda judge, body: '{"reason": "Nice.", "score": 1}'))
    assert not report.is_injectable
    assert not report.tells_apart


def test_a_script_can_be_a_judge() -> None:
    async def main() -> GradeResult:
        policy = {"script": "constant", "constant": '{"reason": "Always.", "score": 0.5}'}
        judge = make_grader(JudgeSettings(), PolicyKind.SCRIPTED, policy, None)
        return await judge.grade(facts("x"))

    judged = asyncio.run(main())
    assert (judged.score, judged.cost) == (0.5, None)


def test_steps_are_judged_one_by_one() -> None:
    def by_step(judge: FakeJudge, body: dict[str, Any]) -> str:
        steps = '{"step": 1, "reason": "fine", "score": 1}, {"step": 2, "reason": "slip", "score": 0}'
        return f'{{"reason": "r", "steps": [{steps}]}}'

    judged = ask(FakeJudge(by_step), "17 + 25 = 42\nso 43", target="steps")
    assert judged.score == 0.5
    [verdict] = judged.verdicts
    assert verdict["unit"] == "lines"
    assert [step["score"] for step in verdict["steps"]] == [1.0, 0.0]
