"""The audit counts the branches of the grader that its answers execute, and is not fooled by a grader that notices."""

from dataclasses import asdict

import pytest

from backend.domain.environments.audit_coverage import audit_coverage
from backend.domain.vocabulary import CheckStatus
from tests.environments.checks.bad_rewards import quiz
from tests.environments.checks.test_checks_find_faults import look_at
from tests.library.conftest import Serve
from tests.needed_checks import needed_for

pytestmark = pytest.mark.slow

AUDIT = needed_for("answers_known", "wrong_answers_lose", "equal_answers_win", "branches_executed")


async def test_a_branch_that_no_answer_reaches_is_listed_with_its_line(serve: Serve) -> None:
    files = quiz('if text == "open sesame":\n    is_right = True')
    results = await look_at(serve, files, checks=AUDIT)
    found = results["branches_executed"]
    source = files["server/quiz_environment.py"].split("\n")
    line = next(number for number, text in enumerate(source, 1) if "open sesame" in text)
    assert f"server/quiz_environment.py:{line}" in found.evidence
    missed = found.details["missed"]
    assert isinstance(missed, list)
    assert {
        "path": "server/quiz_environment.py",
        "line": line,
        "function": "QuizEnvironment.step",
        "source": 'if text == "open sesame":',
        "condition": 'text == "open sesame"',
        "outcome": "true",
    } in missed
    assert len(missed) == 3  # the others are of steps after the end and before it
    coverage = audit_coverage([asdict(result) for result in results.values()])
    assert coverage is not None
    assert coverage.score is not None
    assert 0.5 < coverage.score < 1


async def test_a_grader_that_notices_the_record_has_no_coverage(serve: Serve) -> None:
    files = quiz('import builtins\nif hasattr(builtins, "__proctor_hit__"):\n    is_right = not is_right')
    results = await look_at(serve, files, checks=AUDIT)
    found = results["branches_executed"]
    assert found.status is CheckStatus.WARNED
    assert "earn another reward while they are recorded" in found.evidence
    assert "executed" not in found.details
    coverage = audit_coverage([asdict(result) for result in results.values()])
    assert coverage is not None
    assert coverage.score is None
