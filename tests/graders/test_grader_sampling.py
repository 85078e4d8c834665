"""The sample that a budget draws: its chances are known, and it finds more than a random one of the same size."""

import random
import uuid

import pytest

from backend.domain.graders.sampling import Candidate, choose, size_of


def candidates(dice: random.Random, count: int = 300) -> list[Candidate]:
    """A tenth is flagged with any suspicion; rewards differ."""
    return [
        Candidate(uuid.UUID(int=place), dice.random(), place % 7 / 6, place / count if place % 10 == 0 else 0.0, place)
        for place in range(count)
    ]


def test_uncertain_rewarded_and_unlike_ones_are_larger() -> None:
    def size(reward_share: float = 1.0, suspicion: float = 0.0, alike: int = 1) -> float:
        return size_of(Candidate(uuid.UUID(int=1), 0.5, reward_share, suspicion, 0), alike)

    assert size(suspicion=0.5) > size(suspicion=0.8) > size(suspicion=0.99) == pytest.approx(size())
    assert size(1.0) == pytest.approx(3 * size(0.0))
    assert size(alike=4) == pytest.approx(size() / 2)
    assert size(reward_share=-3.0) > 0


def test_all_are_taken_where_the_budget_suffices() -> None:
    chosen = choose(candidates(random.Random(1), 20), 20)
    assert {each.chance for each in chosen} == {1.0}
    assert len(chosen) == 20
    assert choose([], 20) == []


def test_the_sample_has_the_size_of_the_budget_in_order_of_priority() -> None:
    chosen = choose(candidates(random.Random(1)), 40)
    assert len(chosen) == 40
    assert [each.priority for each in chosen] == sorted(each.priority for each in chosen)
    assert all(0 < each.chance <= 1 for each in chosen)


def test_totals_weighted_by_chance_are_unbiased_and_find_what_is_uncertain() -> None:
    dice, totals, uncertain = random.Random(7), [], 0
    for _ in range(400):
        chosen = choose(candidates(dice), 40)
        totals.append(sum(1 / each.chance for each in chosen if each.id.int % 3 == 0))
        uncertain += sum(each.id.int % 10 == 0 and 60 <= each.id.int <= 240 for each in chosen)
    assert sum(totals) / len(totals) == pytest.approx(100, rel=0.05)
    assert uncertain / 400 > 1.7 * 40 * 19 / 300
