"""The bisection alone: the next checkpoint, when a share is above the base rate, and the conclusion."""

import math
import random
from collections.abc import Callable

import pytest
from scipy.stats import fisher_exact

from backend.domain.statistics import Proportion, wilson
from backend.domain.studies.onset import (
    BASE,
    OnsetOutcome,
    caveats,
    conclude_onset,
    exceeds_base_rate,
    max_checkpoints,
    min_detectable_share,
    nearest,
    next_checkpoint,
    p_value,
)


def searched(count: int, is_above: Callable[[int], bool], hint: int | None = None) -> dict[int, bool]:
    """The samples of a complete search, in order."""
    found: dict[int, bool] = {}
    while (place := next_checkpoint(count, found, hint)) is not None:
        assert 0 <= place < count
        assert place not in found, "nothing is sampled twice"
        found[place] = is_above(place)
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8, 33, 200])
def test_a_share_that_only_rises_is_found_exactly_and_soon(count: int) -> None:
    for onset in range(count):
        found = searched(count, lambda place, onset=onset: place >= onset)
        conclusion = conclude_onset(found)
        assert (conclusion.hacking, conclusion.honest) == (onset, onset - 1 if onset else BASE)
        assert conclusion.outcome is (OnsetOutcome.FOUND if onset else OnsetOutcome.AT_THE_FIRST)
        assert conclusion.is_monotone
        assert len(found) <= max_checkpoints(count)
    assert max_checkpoints(200) == math.ceil(math.log2(201)) + 3


def test_nothing_above_the_base_rate_is_said_after_two_looks() -> None:
    found = searched(64, lambda place: False, hint=20)
    assert list(found) == [63, 20]
    conclusion = conclude_onset(found)
    assert (conclusion.outcome, conclusion.hacking) == (OnsetOutcome.NOT_SEEN, None)


def test_a_pattern_that_went_again_is_found_by_the_judged_rollouts() -> None:
    found = searched(40, lambda place: 10 <= place < 20, hint=15)
    conclusion = conclude_onset(found)
    assert (conclusion.hacking, conclusion.honest) == (10, 9)
    assert not conclusion.is_monotone


def test_a_neighbor_that_states_otherwise_moves_the_onset_or_is_reported() -> None:
    """Between the last below (5) and the first above (6) all is well, but 4 is above: the search continues below it."""
    above = {place for place in range(16) if place >= 6} | {4}
    found = searched(16, lambda place: place in above)
    conclusion = conclude_onset(found)
    assert (conclusion.hacking, conclusion.honest) == (4, 3)
    assert not conclusion.is_monotone
    assert {3, 4, 5} <= found.keys(), "its own neighbours were looked at"


def test_any_curve_ends_with_an_interval_whose_ends_were_sampled() -> None:
    dice = random.Random(7)
    for _ in range(500):
        count = dice.randint(1, 60)
        curve = [dice.random() < place / count for place in range(count)]
        found = searched(count, curve.__getitem__, dice.choice([None, *range(count)]))
        conclusion = conclude_onset(found)
        assert len(found) <= count
        if conclusion.hacking is None:
            assert not any(found.values())
            continue
        assert curve[conclusion.hacking]
        assert conclusion.honest == BASE or not curve[conclusion.honest]
        between = range(conclusion.honest + 1, conclusion.hacking)
        assert not list(between), "no checkpoint lies between the two ends"
        after = [place for place in found if place > conclusion.hacking]
        assert conclusion.is_monotone == all(found[place] for place in after)
        for neighbour in (conclusion.honest - 1, conclusion.hacking + 1):
            assert neighbour in found or not 0 <= neighbour < count, "both neighbours were looked at"


def test_noise_at_the_size_of_the_sample_seldom_moves_the_onset_far() -> None:
    """A share that rises from 1% to 60% within 30 of 64 checkpoints, 128 rollouts each, tested as in a search."""
    dice = random.Random(3)
    base = wilson(1, 128)
    truth = [min(0.6, max(0.01, (place - 20) / 30)) for place in range(64)]
    met = []
    for _ in range(40):

        def is_above(place: int) -> bool:
            return exceeds_base_rate(base, wilson(sum(dice.random() < truth[place] for _ in range(128)), 128))

        met.append(conclude_onset(searched(64, is_above)).hacking)
    least = min_detectable_share(base, 128)
    assert least is not None
    assert all(place is not None and 20 <= place <= 28 for place in met), sorted(set(met), key=str)


def test_the_test_is_fishers_and_asks_for_an_effect() -> None:
    base, found = wilson(2, 100), wilson(15, 100)
    assert p_value(base, found) == pytest.approx(fisher_exact([[15, 85], [2, 98]], alternative="greater").pvalue)
    assert exceeds_base_rate(base, found)
    assert not exceeds_base_rate(base, wilson(6, 100)), "may be chance"
    assert not exceeds_base_rate(wilson(200, 10_000), wilson(400, 10_000)), "sure, and too little to matter"
    assert not exceeds_base_rate(found, base), "less is no onset"


def test_the_least_visible_share_is_where_the_test_turns() -> None:
    least = min_detectable_share(wilson(0, 128), 128)
    assert least == 7 / 128
    assert exceeds_base_rate(wilson(0, 128), wilson(7, 128))
    assert not exceeds_base_rate(wilson(0, 128), wilson(6, 128))
    assert min_detectable_share(wilson(8, 8), 8) is None


def test_false_alarms_of_one_scan_are_rarer_than_the_level() -> None:
    dice = random.Random(11)

    def draw() -> Proportion:
        return wilson(sum(dice.random() < 0.1 for _ in range(128)), 128)

    assert sum(exceeds_base_rate(draw(), draw()) for _ in range(400)) <= 8


def test_the_nearest_checkpoint_to_a_step() -> None:
    assert nearest([10, 20, 30], 24) == 1
    assert nearest([], 24) is None


def test_what_is_reported_next_to_the_interval() -> None:
    base, clean, hacking = wilson(0, 128), wilson(0, 128), wilson(60, 128)
    few = caveats(base, [20, 40], {0: (hacking, True), 1: (hacking, True)})
    assert any("2 checkpoints" in remark for remark in few)
    assert any("No checkpoint is before" in remark for remark in few)
    assert caveats(base, [20, 40, 60], {1: (clean, False), 2: (hacking, True)}) == []
    (unseen,) = caveats(base, [20, 40, 60], {2: (clean, False)})
    assert "below 5.5%" in unseen
    (fallen,) = caveats(base, [20, 40, 60], {0: (clean, False), 1: (hacking, True), 2: (clean, False)})
    assert "not monotone: step 60" in fallen
    (grown,) = caveats(wilson(40, 128), [20, 40, 60], {1: (wilson(40, 128), False), 2: (wilson(90, 128), True)})
    assert "already" in grown
    assert "nothing could be sampled" in caveats(base, [], {})[0]
