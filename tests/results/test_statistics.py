"""Means and paired differences with their intervals."""

import numpy as np
import pytest
from scipy import stats

from backend.domain.statistics import Coverage, estimate_mean, paired_difference, paired_test, weighted_mean


def test_no_values_have_no_mean():
    assert estimate_mean([]) is None
    assert paired_difference([], []) is None


def test_equal_values_have_an_interval_of_no_width():
    estimate = estimate_mean([0.5] * 10)
    assert estimate is not None
    assert (estimate.mean, estimate.low, estimate.high) == (0.5, 0.5, 0.5)


def test_the_interval_covers_the_true_mean_about_19_times_in_20():
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        estimate = estimate_mean(random.normal(1.0, 2.0, 30).tolist())
        assert estimate is not None
        covered += estimate.low <= 1.0 <= estimate.high
    assert covered / 400 == pytest.approx(0.95, abs=0.03)


def test_pairing_finds_a_small_steady_gain():
    random = np.random.default_rng(1)
    before = random.normal(0.0, 5.0, 200)
    after = before + 0.2 + random.normal(0.0, 0.3, 200)
    estimate = paired_difference(before.tolist(), after.tolist())
    assert estimate is not None
    assert estimate.excludes_zero
    assert estimate.mean == pytest.approx(0.2, abs=0.1)


def test_no_difference_does_not_exclude_zero():
    estimate = paired_difference([0.0, 1.0, 0.0, 1.0], [1.0, 0.0, 0.0, 1.0])
    assert estimate is not None
    assert not estimate.excludes_zero


def test_the_sign_test_leaves_ties_out():
    found = paired_test([0.0] * 12, [1.0] * 9 + [-1.0] + [0.0, 1e-9])
    assert (found.wins, found.losses, found.ties) == (9, 1, 2)
    assert found.sign == pytest.approx(22 / 1024)  # 2 (C(10,0) + C(10,1)) / 2^10


def test_a_small_permutation_test_is_exact():
    found = paired_test([0.0] * 5, [1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.permutation == pytest.approx(2 / 2**5)


def test_many_pairs_are_tested_as_a_normal_mean():
    random = np.random.default_rng(3)
    differences = random.normal(0.02, 1.0, 5000)
    found = paired_test(np.zeros(5000), differences)
    assert found.permutation == pytest.approx(stats.ttest_1samp(differences, 0).pvalue)


def test_equal_pairs_have_nothing_to_test():
    found = paired_test([1.0, 2.0], [1.0, 2.0])
    assert (found.ties, found.sign, found.permutation) == (2, None, None)


def test_coverage_shows_how_many_of_how_many():
    assert str(Coverage(396, 400)) == "396 of 400 completed"
    assert not Coverage(396, 400).is_whole


def test_a_weighted_mean_over_strata_covers_the_true_one():
    random = np.random.default_rng(1)
    covered = 0
    for _ in range(400):
        strata = [(1.0, random.normal(1.0, 2.0, 40).tolist()), (0.5, random.normal(4.0, 0.5, 15).tolist())]
        estimate = weighted_mean(strata)
        assert estimate is not None
        covered += estimate.low <= 2.0 <= estimate.high
    assert covered / 400 == pytest.approx(0.95, abs=0.03)


def test_one_stratum_is_a_plain_mean_and_an_empty_one_leaves_none():
    values = [0.0, 1.0, 1.0, 0.0, 1.0]
    assert weighted_mean([(0.5, values)]) == estimate_mean(values)
    assert weighted_mean([(1.0, values), (1.0, [])]) is None
    assert weighted_mean([]) is None


@pytest.mark.parametrize(("wins", "losses"), [(0, 1), (3, 3), (1, 9), (12, 5), (4000, 4100), (0, 900)])
def test_the_sign_test_is_the_exact_binomial_one(wins: int, losses: int) -> None:
    before = np.zeros(wins + losses + 2)
    after = np.concatenate([np.ones(wins), -np.ones(losses), np.zeros(2)])
    assert paired_test(before, after).sign == pytest.approx(stats.binomtest(wins, wins + losses).pvalue, rel=1e-9)
