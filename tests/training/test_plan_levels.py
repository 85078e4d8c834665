"""A window of levels climbs with what is mastered, and falls back when success collapses."""

from collections import Counter
from typing import Any

import pytest

from backend.domain.training.grpo import CurriculumChoice
from workers.training.curriculum import AdaptiveLevels, RoundRobin


def levels(count: int = 10, **choice: Any) -> AdaptiveLevels:
    defaults = {"kind": "adaptive", "window": 8, "mastery": 0.75, "collapse": 0.25, "width": 3}
    return AdaptiveLevels(CurriculumChoice.model_validate({**defaults, **choice}), count)


def outcomes(level: int, successes: int, failures: int = 0) -> list[tuple[int, bool]]:
    return [(level, True)] * successes + [(level, False)] * failures


def test_turns_come_as_often_as_their_shares_in_every_stretch() -> None:
    turns = RoundRobin([1, 2, 1])
    drawn = [turns.next() for _ in range(400)]
    for start in range(0, 400, 4):
        assert Counter(drawn[start : start + 4]) == {0: 1, 1: 2, 2: 1}


def test_the_window_begins_with_the_lowest_level_alone() -> None:
    window = levels()
    assert {window.next() for _ in range(20)} == {0}


def test_a_mastered_level_adds_the_next_and_keeps_its_share_of_every_batch() -> None:
    window = levels(lower=0.25)
    window.learn(outcomes(0, 6, 2))
    assert (window.low, window.high) == (0, 1)
    for _ in range(5):
        assert Counter(window.next() for _ in range(8)) == {0: 2, 1: 6}


def test_it_waits_until_there_are_episodes_enough() -> None:
    window = levels()
    window.learn(outcomes(0, 7))
    assert window.high == 0
    window.learn(outcomes(0, 1))
    assert window.high == 1


def test_only_the_last_episodes_count() -> None:
    window = levels(collapse=0)
    window.learn(outcomes(0, 0, 50) + outcomes(0, 6))
    assert window.high == 1


def test_at_most_one_level_is_added_after_a_step() -> None:
    window = levels()
    window.learn(outcomes(0, 100) + outcomes(1, 100))
    assert window.high == 1
    assert window.learn(outcomes(1, 7))["high"] == 1
    assert window.high == 1
    window.learn(outcomes(1, 1))
    assert window.high == 2


def test_levels_below_the_window_are_left_behind() -> None:
    window = levels(width=2)
    for level in range(4):
        window.learn(outcomes(level, 8))
    assert (window.low, window.high) == (3, 4)
    assert {window.next() for _ in range(20)} == {3, 4}


def test_it_stops_at_the_highest_level() -> None:
    window = levels(count=2)
    window.learn(outcomes(0, 8))
    window.learn(outcomes(1, 8))
    window.learn(outcomes(1, 8))
    assert window.high == 1


@pytest.mark.parametrize("collapsed", [2, 1])
def test_it_falls_back_when_the_top_or_what_lies_beneath_collapses(collapsed: int) -> None:
    window = levels()
    window.learn(outcomes(0, 8))
    window.learn(outcomes(1, 8))
    window.learn(outcomes(collapsed, 1, 7))
    assert window.high == 1


def test_after_a_fall_mastery_is_asked_of_new_episodes() -> None:
    window = levels()
    window.learn(outcomes(0, 8))
    window.learn(outcomes(0, 8) + outcomes(1, 0, 8))
    assert window.high == 0
    window.learn(outcomes(0, 7))
    assert window.high == 0
    window.learn(outcomes(0, 1))
    assert window.high == 1


def test_a_level_that_stays_hopeless_is_tried_less_and_less_often() -> None:
    window = levels()
    window.learn(outcomes(0, 8))
    for falls in range(1, 5):
        window.learn(outcomes(1, 0, 8))
        assert window.high == 0
        for _ in range(2 ** (falls - 1) * 8 - 1):
            window.learn(outcomes(0, 1))
            assert window.high == 0
        window.learn(outcomes(0, 1))
        assert window.high == 1


def test_a_level_that_was_mastered_at_last_is_forgiven_its_falls() -> None:
    window = levels()
    window.learn(outcomes(0, 8))
    for _ in range(2):
        window.learn(outcomes(1, 0, 8))
        window.learn(outcomes(0, 16))
    window.learn(outcomes(1, 8))
    assert window.high == 2
    window.learn(outcomes(1, 0, 8))  # what lies beneath collapsed: level 2 is left, for the first time
    window.learn(outcomes(1, 0, 8))
    window.learn(outcomes(0, 8))
    assert window.high == 1


def test_without_a_bar_for_collapse_it_never_falls() -> None:
    window = levels(collapse=0)
    window.learn(outcomes(0, 8))
    window.learn(outcomes(1, 0, 100))
    assert window.high == 1


def test_it_can_begin_higher_but_not_above_what_there_is() -> None:
    assert levels(start=4).high == 4
    assert levels(count=3, start=50).high == 2


def test_its_curves_show_the_window_that_was_played() -> None:
    window = levels()
    assert window.learn(outcomes(0, 6, 2)) == {"low": 0.0, "high": 0.0, "success": 0.75}
    assert window.learn([]) == {"low": 0.0, "high": 1.0}


@pytest.mark.parametrize("steps", [0, 3, 11])
def test_a_restored_window_continues_as_if_nothing_had_happened(steps: int) -> None:
    whole, cut = levels(lower=0.3), levels(lower=0.3)
    for step in range(20):
        if step == steps:
            kept, cut = cut.state, levels(lower=0.3)
            cut.restore(kept)
        drawn = [whole.next() for _ in range(7)]
        assert [cut.next() for _ in range(7)] == drawn
        seen = [(level, (level + step + turn) % 5 > 0) for turn, level in enumerate(drawn)]
        assert whole.learn(seen) == cut.learn(seen)
    assert whole.state == cut.state
    assert whole.high > 0


def test_a_restored_mix_continues_as_if_nothing_had_happened() -> None:
    whole, cut = RoundRobin([1, 0, 2.5]), RoundRobin([1, 0, 2.5])
    before = [whole.next() for _ in range(5)]
    assert [cut.next() for _ in range(5)] == before
    assert 1 not in before
    again = RoundRobin(cut.shares, cut.credit)
    assert [again.next() for _ in range(20)] == [whole.next() for _ in range(20)]
