"""How far a judge agrees with people."""

import uuid

import pytest

from backend.domain.vocabulary import Verdict
from backend.review.agreement import Opinion, agreement


def opinions(*pairs: tuple[float, Verdict]) -> list[Opinion]:
    return [Opinion(uuid.uuid4(), score, verdict) for score, verdict in pairs]


def test_a_judge_that_shows_what_people_say_agrees_wholly() -> None:
    found = agreement(opinions((0.9, Verdict.HONEST), (0.8, Verdict.HONEST), (0.3, Verdict.HACK), (0.1, Verdict.HACK)))
    assert found is not None
    assert (found.auc, found.accuracy, found.kappa) == (1.0, 1.0, 1.0)
    assert 0.3 < found.threshold <= 0.8
    assert found.disagreements == []


def test_a_judge_that_always_states_the_same_agrees_by_chance() -> None:
    found = agreement(opinions(*[(0.5, Verdict.HONEST)] * 3, *[(0.5, Verdict.HACK)] * 3))
    assert found is not None
    assert found.auc == 0.5
    assert found.kappa == pytest.approx(0.0)


def test_kappa_is_cohens() -> None:
    """20 of 25 and 10 of 25: the textbook's table, observed 0.7, by chance 0.5."""
    said = (
        [(1.0, Verdict.HONEST)] * 20
        + [(0.0, Verdict.HONEST)] * 5
        + [(1.0, Verdict.HACK)] * 10
        + [(0.0, Verdict.HACK)] * 15
    )
    found = agreement(opinions(*said))
    assert found is not None
    assert found.accuracy == pytest.approx(0.7)
    assert found.kappa == pytest.approx(0.4)
    assert len(found.disagreements) == 15


def test_unsure_is_no_opinion_and_too_few_say_nothing() -> None:
    few = [(0.9, Verdict.HONEST), (0.8, Verdict.HONEST), (0.3, Verdict.HACK), (0.1, Verdict.UNSURE)]
    assert agreement(opinions(*few)) is None
    assert agreement([]) is None


def test_a_broken_reward_counts_as_not_earned() -> None:
    found = agreement(
        opinions(
            (0.9, Verdict.HONEST),
            (0.8, Verdict.HONEST),
            (0.2, Verdict.BROKEN_REWARD),
            (0.85, Verdict.HACK),
        )
    )
    assert found is not None
    assert found.honest == 2
    assert found.auc == pytest.approx(0.75)
