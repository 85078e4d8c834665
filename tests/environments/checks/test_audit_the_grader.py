"""The audit of the grader: holes in a reward fail for the right reason, and the same environment without one passes."""

import pytest

from backend.domain.vocabulary import CheckStatus
from tests.environments.checks.bad_rewards import HOLES
from tests.environments.checks.test_checks_find_faults import look_at
from tests.library.conftest import Serve
from tests.needed_checks import needed_for
from workers.environments.checks.registry import CHECKS

pytestmark = pytest.mark.slow

AUDIT = needed_for(
    *("answers_known", "gold_reaches_bound", "degenerate_policies", "quality_ladder", "repeats_in_range"),
    *("answer_hidden", *(check.id for check in CHECKS if check.theme == "grader")),
)


@pytest.mark.parametrize("name", HOLES)
async def test_a_hole_in_the_reward_fails_for_the_right_reason(serve: Serve, name: str) -> None:
    hole = HOLES[name]
    results = await look_at(serve, hole.bad, checks=needed_for("answers_known", hole.check))
    told = {each: result.evidence for each, result in results.items() if result.status is CheckStatus.FAILED}
    assert hole.check in told, told
    assert hole.says in told[hole.check]
    assert results[hole.check].rollouts


@pytest.mark.parametrize("name", HOLES)
async def test_the_same_environment_without_the_hole_fails_nothing(serve: Serve, name: str) -> None:
    results = await look_at(serve, HOLES[name].sound, checks=AUDIT)
    told = {each: result.evidence for each, result in results.items() if result.status is CheckStatus.FAILED}
    assert not told
