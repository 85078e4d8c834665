"""The coverage of an audit: three shares with intervals, and their geometric mean."""

import random
from dataclasses import asdict
from math import prod

import pytest

from backend.domain.environments.audit_coverage import AuditCoverage, audit_coverage
from backend.domain.environments.certificate import CheckResult
from backend.domain.vocabulary import CheckStatus


def coverage(*shares: tuple[int, int]) -> AuditCoverage | None:
    names = (("wrong_answers_lose", "killed", "played"), ("equal_answers_win", "kept", "played"))
    names += (("branches_executed", "executed", "total"),)
    return audit_coverage(
        [
            asdict(CheckResult(check, "", CheckStatus.PASSED, "", details={found: share[0], total: share[1]}))
            for (check, found, total), share in zip(names, shares, strict=False)
        ]
    )


def test_the_score_is_the_geometric_mean_of_the_shares() -> None:
    found = coverage((90, 100), (40, 50), (30, 60))
    assert found is not None
    assert found.score == pytest.approx((0.9 * 0.8 * 0.5) ** (1 / 3))
    assert (found.low, found.high) == pytest.approx((0.6343, 0.7726), abs=1e-4)


def test_a_share_of_nothing_and_of_everything() -> None:
    found = coverage((0, 10), (10, 10), (10, 10))
    assert found is not None
    assert (found.score, found.low) == (0.0, 0.0)
    assert found.high == pytest.approx(0.65, abs=0.01)
    found = coverage((100, 100), (50, 50), (60, 60))
    assert found is not None
    assert (found.score, found.high) == (1.0, 1.0)
    assert 0.9 < (found.low or 0) < 1


def test_there_is_no_score_without_one_of_the_shares() -> None:
    assert coverage() is None
    assert coverage((1, 0)) is None
    found = coverage((9, 10), (10, 10))
    assert found is not None
    assert (found.score, len(found.shares)) == (None, 2)


def test_one_branch_that_is_not_executed_is_shown_and_does_not_make_the_score_zero() -> None:
    found = coverage((9, 10), (10, 10), (0, 1))
    assert found is not None
    assert (found.score, found.low, len(found.shares)) == (None, None, 3)


def test_the_interval_covers_the_score_of_independent_samples() -> None:
    chance, rates, sizes = random.Random(1), (0.95, 0.9, 0.75), (120, 40, 60)
    truth, hits = prod(rates) ** (1 / 3), 0
    for _ in range(1000):
        draws = [sum(chance.random() < rate for _ in range(n)) for rate, n in zip(rates, sizes, strict=True)]
        found = coverage(*zip(draws, sizes, strict=True))
        hits += found is not None and (found.low or 0) <= truth <= (found.high or 0)
    assert 0.935 <= hits / 1000 <= 0.985
