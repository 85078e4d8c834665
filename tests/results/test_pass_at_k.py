"""pass@k and pass^k against the closed forms of their papers and against brute force."""

from itertools import combinations

import numpy as np
import pytest

from backend.domain.results.pass_at_k import (
    SuccessRule,
    TaskCount,
    default_rule,
    pass_at_k,
    pass_curve,
    pass_hat_k,
    shown_ks,
)
from tests.factories import make_manifest


def product_form(n: int, c: int, k: int) -> float:
    """The numerically stable form that Chen et al. 2021 give for equation 1: 1 − ∏ (1 − k/i) for i in n−c+1 … n."""
    return 1.0 if n - c < k else 1.0 - float(np.prod(1.0 - k / np.arange(n - c + 1, n + 1)))


@pytest.mark.parametrize(("n", "c", "k"), [(10, 3, 1), (10, 3, 5), (200, 7, 100), (4, 0, 2), (4, 4, 4), (256, 128, 64)])
def test_pass_at_k_is_equation_1_of_chen_et_al(n: int, c: int, k: int) -> None:
    assert pass_at_k(n, c, k) == pytest.approx(product_form(n, c, k))


@pytest.mark.parametrize(("n", "c"), [(5, 0), (5, 2), (5, 5), (6, 1)])
def test_both_are_the_share_of_all_draws(n: int, c: int) -> None:
    attempts = [True] * c + [False] * (n - c)
    for k in range(1, n + 1):
        draws = list(combinations(attempts, k))
        assert pass_at_k(n, c, k) == pytest.approx(np.mean([any(draw) for draw in draws]))
        assert pass_hat_k(n, c, k) == pytest.approx(np.mean([all(draw) for draw in draws]))


def test_known_values() -> None:
    assert pass_at_k(4, 1, 2) == pytest.approx(0.5)
    assert pass_hat_k(4, 3, 2) == pytest.approx(0.5)
    assert pass_hat_k(8, 6, 4) == pytest.approx(15 / 70)


def test_the_curve_begins_with_the_rate_and_parts() -> None:
    curve = pass_curve([TaskCount(4, 2, 10), TaskCount(4, 4, 5), TaskCount(4, 0, 5)])
    assert [point.k for point in curve] == [1, 2, 3, 4]
    assert curve[0].any.mean == curve[0].all.mean == pytest.approx(0.5)
    assert curve[3].any.mean == pytest.approx(0.75)
    assert curve[3].all.mean == pytest.approx(0.25)
    assert all(0 <= point.any.low <= point.any.high <= 1 for point in curve)


def test_a_k_counts_only_tasks_with_so_many_completed_rollouts() -> None:
    curve = pass_curve([TaskCount(4, 1, 3), TaskCount(2, 2, 1), TaskCount(0, 0, 7)])
    assert [(point.k, point.tasks) for point in curve] == [(1, 4), (2, 4), (3, 3), (4, 3)]
    assert pass_curve([]) == []


def test_large_groups_show_the_powers_of_two() -> None:
    assert shown_ks(8) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert shown_ks(64) == [1, 2, 4, 8, 16, 32, 64]
    assert shown_ks(100) == [1, 2, 4, 8, 16, 32, 64, 100]


def test_a_column_named_for_it_decides_at_its_highest_value() -> None:
    assert default_rule(make_manifest("game")) == SuccessRule("win", 1.0)
    ranged = {"format": 0.1, "solved": {"weight": 2.0, "range": [0, 10]}}
    assert default_rule(make_manifest("game", ranged)) == SuccessRule("solved", 10.0)
    assert default_rule(make_manifest("game", ranged)).expression == "solved >= 10"


def test_else_half_of_what_the_reward_can_be() -> None:
    rule = default_rule(make_manifest("game", {"similarity": 1.0, "slip": {"weight": 0.5, "range": [-1, 0]}}))
    assert rule == SuccessRule("reward", 0.25)
