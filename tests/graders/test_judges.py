"""Reading a judge's reply: a score in [0, 1], or no verdict at all."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from backend.domain.errors import JudgeError
from backend.domain.graders.replies import (
    JudgeVerdict,
    fold_verdicts,
    read_verdict,
    response_format,
    sendable,
    verdict_schema,
)
from backend.domain.graders.settings import Criterion, JudgeSettings

RUBRIC = (
    Criterion(name="correct", description="Is it right?", weight=3),
    Criterion(name="brief", description="Short?"),
)


def judge(**fields: Any) -> JudgeSettings:
    return JudgeSettings(**fields)


@pytest.mark.parametrize(
    ("fields", "reply", "score"),
    [
        ({"scale": "boolean"}, {"verdict": True}, 1.0),
        ({"scale": "boolean"}, {"verdict": False}, 0.0),
        ({"scale": "one_to_five"}, {"score": 4}, 0.75),
        ({"scale": "unit"}, {"score": 0.3}, 0.3),
        ({"scale": "rubric", "criteria": RUBRIC}, {"criteria": {"correct": 1, "brief": 0}}, 0.75),
    ],
)
def test_each_scale_becomes_a_score_in_the_unit_interval(fields: dict[str, Any], reply: Any, score: float) -> None:
    verdict = read_verdict(judge(**fields), json.dumps({"reason": "r", **reply}))
    assert verdict.score == pytest.approx(score)
    assert verdict.reason == "r"


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "7/10",
        "{}",
        '{"score": 1}',
        '{"reason": "r", "score": 1.5}',
        '{"reason": "r", "score": "1"}',
        '{"reason": "r", "score": true}',
        '{"reason": "r", "score": 1, "more": 2}',
        "[1]",
        '{"reason": "r", "score": NaN}',
        "{" * 5000,
        '{"reason": null, "score": 1}',
    ],
)
def test_what_is_no_verdict_is_an_error_and_never_a_zero(reply: str) -> None:
    with pytest.raises(JudgeError):
        read_verdict(judge(), reply)


@pytest.mark.parametrize(
    "reply",
    [
        '<think>Maybe {"reason": "no", "score": 0}?</think>\n{"reason": "r", "score": 1}',
        'Here it is:\n```json\n{"reason": "r", "score": 1}\n```',
        '\n {"reason": "r", "score": 1} \n',
    ],
)
def test_thinking_before_the_verdict_is_no_fault(reply: str) -> None:
    assert read_verdict(judge(), reply) == JudgeVerdict(1.0, "r")


def test_steps_are_scored_one_by_one_and_folded() -> None:
    steps = [{"step": number, "reason": "", "score": score} for number, score in ((1, 1.0), (2, 0.2))]
    reply = json.dumps({"reason": "r", "steps": steps})
    assert read_verdict(judge(target="steps"), reply, 2).score == pytest.approx(0.6)
    lowest = read_verdict(judge(target="steps", fold="lowest"), reply, 2)
    assert lowest.score == pytest.approx(0.2)
    assert [step.score for step in lowest.steps] == [1.0, 0.2]
    with pytest.raises(JudgeError):
        read_verdict(judge(target="steps"), reply, 3)
    with pytest.raises(JudgeError, match="in order"):
        read_verdict(judge(target="steps"), reply.replace('"step": 2', '"step": 1'), 2)


def test_repeats_become_a_mean_and_a_spread() -> None:
    score, spread = fold_verdicts([JudgeVerdict(0.0, ""), JudgeVerdict(1.0, "")])
    assert score == 0.5
    assert spread == pytest.approx(0.7071, abs=1e-4)
    assert fold_verdicts([JudgeVerdict(1.0, "")]) == (1.0, None)


def test_the_reason_comes_before_the_score() -> None:
    assert list(verdict_schema(judge())["properties"]) == ["reason", "score"]


def test_what_is_sent_has_no_bounds_that_endpoints_refuse() -> None:
    told = json.dumps(response_format(judge(target="steps")))
    assert "minimum" not in told
    assert "minItems" not in json.dumps(sendable(verdict_schema(judge(target="steps"), 3)))


@pytest.mark.parametrize(
    "fields",
    [
        {"scale": "rubric"},
        {"criteria": RUBRIC},
        {"instruction": "{{ answer"},
        {"instruction": ""},
        {"repeats": 0},
        {"scale": "rubric", "criteria": (RUBRIC[0], RUBRIC[0])},
    ],
)
def test_a_judge_that_cannot_work_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        judge(**fields)
