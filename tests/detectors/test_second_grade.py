"""Second grades: an oracle's metric, a judge's score or another version, against the reward."""

import random
from dataclasses import replace

import pytest

from backend.domain.detectors.run_view import RolloutRow, SecondVerifier
from backend.domain.results.pass_at_k import SuccessRule
from tests.detectors.rows import BATCH, flags, row


def graded(reward: float, grade: float | bool) -> RolloutRow:
    return row(reward, metrics={"oracle_correct": grade})


def test_a_high_reward_with_a_low_second_grade_is_flagged() -> None:
    bad = graded(1.2, 0.0)
    rows = [*(graded(1.2, 1.0) for _ in range(20)), *(graded(0.0, 0.0) for _ in range(20)), bad, graded(1.2, 0.7)]
    (draft,) = flags("second_grade", rows)
    assert draft.rollout_id == bad.id
    assert draft.evidence["second_grade"] == 0.0


def test_a_run_that_only_farms_is_flagged_as_a_whole() -> None:
    assert len(flags("second_grade", [graded(1.2, False) for _ in range(20)])) == 20
    assert not flags("second_grade", [graded(1.2, True) for _ in range(20)])


@pytest.mark.parametrize("seed", range(3))
def test_a_noisy_second_grader_that_errs_both_ways_is_not_believed(seed: int) -> None:
    dice = random.Random(seed)
    right = [dice.random() < 0.5 for _ in range(200)]
    rows = [graded(1.2 * each, each if dice.random() < 0.85 else not each) for each in right]
    assert not flags("second_grade", rows)


def test_a_reward_that_measures_something_else_is_no_noise() -> None:
    dice = random.Random(0)
    usual = [graded(dice.choice((0.0, 0.1, 0.2)), dice.choice((0.0, 0.4, 1.0))) for _ in range(60)]
    farmed = [graded(1.1, 0.0) for _ in range(6)]
    found = {draft.rollout_id for draft in flags("second_grade", [*usual, *farmed])}
    assert found >= {each.id for each in farmed}
    assert len(found) <= 12


def test_judges_and_other_versions_are_second_graders_and_weighted_columns_are_not() -> None:
    context = replace(BATCH, second=SecondVerifier("v2", SuccessRule("win", 1.0)))
    judged = [replace(row(1.2), judge_score=0.1 if n < 5 else 0.9) for n in range(30)]
    assert len(flags("second_grade", judged)) == 5
    rescored = [row(1.2, second_reward=1.0, second_columns={"win": float(n > 4)}) for n in range(30)]
    assert len(flags("second_grade", rescored, context=context)) == 5
    weighted = replace(BATCH, weights={**BATCH.weights, "oracle": 1.0})
    columns = [row(1.2, columns={"win": 1.0, "oracle": float(n > 4)}) for n in range(30)]
    assert not flags("second_grade", columns, context=weighted)
    assert len(flags("second_grade", columns)) == 5


def test_grades_up_to_ten_are_read_as_such() -> None:
    rows = [graded(1.2, 9), *(graded(1.2, 8) for _ in range(20)), graded(1.2, 1)]
    assert [draft.rollout_id for draft in flags("second_grade", rows)] == [rows[-1].id]
