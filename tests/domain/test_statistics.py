"""Means and paired differences with their intervals."""

import numpy as np
import pytest

from backend.domain.statistics import estimate_mean, paired_difference


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
