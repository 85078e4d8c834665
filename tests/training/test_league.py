"""Elo ratings of self-play, and the settings that it cannot be combined with."""

import math
import random
from collections import Counter
from typing import Any

import pytest

from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.self_play import League, LeagueMember


def league(*ratings: float, rating: float = 1000.0, most: int = 8) -> League:
    members = [LeagueMember(f"grpo {10 * place}", each) for place, each in enumerate(ratings)]
    return League(members, rating, most)


def test_the_expected_score_follows_the_logistic_formula() -> None:
    even = league(1000, 1400, 600)
    assert [even.expected(member) for member in even.members] == pytest.approx([0.5, 1 / 11, 10 / 11])


def test_a_step_moves_both_ratings_but_never_that_of_the_first_member() -> None:
    two = league(1000, 1000)
    two.record([("grpo 10", 1.0)] * 3 + [("grpo 10", 0.5)] + [("unknown", 1.0)] * 9)
    gain = 16 * (3.5 / 4 - 0.5)
    assert (two.rating, two.members[1].rating) == pytest.approx((1000 + gain, 1000 - gain))
    assert (two.members[1].games, two.members[1].points) == (4, 3.5)
    two = league(1000)
    two.record([("grpo 0", 1.0)] * 500)
    assert (two.rating, two.members[0].rating) == (1016.0, 1000.0)  # one step moves at most 32 (s - E)


def test_ratings_converge_to_the_strength_that_explains_the_scores() -> None:
    pool, chance = league(1000), random.Random(3)
    strength = 1000 + 400 * math.log10(0.75 / 0.25)
    for _ in range(400):
        pool.record([("grpo 0", float(chance.random() < 0.75)) for _ in range(16)])
    assert pool.rating == pytest.approx(strength, abs=40)


def test_opponents_of_similar_strength_are_drawn_most_often() -> None:
    pool = league(600, 1000, 1400)
    chances = pool.chances()
    assert chances == pytest.approx([0.199, 0.602, 0.199], abs=1e-3)
    drawn = Counter(pool.draw(random.Random(f"0/1/{ordinal}")).name for ordinal in range(2000))
    assert drawn["grpo 10"] / 2000 == pytest.approx(chances[1], abs=0.04)
    assert pool.draw(random.Random("0/1/7")).name == pool.draw(random.Random("0/1/7")).name


def test_a_new_member_has_the_policys_rating_and_the_weakest_but_the_first_leaves() -> None:
    pool = league(1000, 900, 1100, rating=1200, most=3)
    assert pool.join("grpo 30") == ["grpo 10"]
    assert [(member.name, member.rating) for member in pool.members] == [
        ("grpo 0", 1000),
        ("grpo 20", 1100),
        ("grpo 30", 1200),
    ]
    assert pool.join("grpo 30") == []
    pool.rating = 800
    assert pool.join("grpo 40") == ["grpo 20"]  # a policy that became weaker joins, too
    assert [member.name for member in pool.members] == ["grpo 0", "grpo 30", "grpo 40"]
    assert [member.name for member, _ in pool.standings()] == ["grpo 30", "grpo 0", "grpo 40"]


def test_the_curves_hold_the_whole_league() -> None:
    pool = league(1000, 900.1, 1100.7, rating=1 / 3 * 3000)
    pool.record([("grpo 10", 0.5), ("grpo 20", 1.0)])
    assert League.of(pool.figures()) == pool
    assert League.of({"reward": 1.0}) is None


@pytest.mark.parametrize(
    ("choices", "problem"),
    [
        ({}, ""),
        ({"recipe": "sft"}, "part of GRPO"),
        ({"recipe": "distillation"}, "part of GRPO"),
        ({"grpo": {"staleness": 1}}, "grpo.staleness=0"),
        ({"engine": "vllm"}, "another engine than vllm"),
        ({"hardware": {"processes": 2}}, "hardware.processes=1"),
    ],
)
def test_settings_that_self_play_cannot_be_combined_with(choices: dict[str, Any], problem: str) -> None:
    configuration = TrainingConfiguration.model_validate({**choices, "self_play": {"every": 5}})
    found = " ".join(configuration.problems(scripts=["teacher"], levels=1, has_seats=True))
    assert problem in found
    assert problem or not found
    assert "declares no seats" in " ".join(configuration.problems(scripts=["teacher"], levels=1))
