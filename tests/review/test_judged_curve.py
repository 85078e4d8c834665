"""The corrected curve: exact where all is reviewed, honest about unreviewed rollouts, and its interval covers."""

import random

import pytest

from backend.domain.review.judged_curve import JudgedEpisode, StepSum, judged_curve
from backend.domain.statistics import wilson

FLOOR = 0.2


def episode(step: int, reward: float, **fields) -> JudgedEpisode:
    judged = {"is_judged": True, "is_evidence": True} if fields.get("corrected") is not None else {}
    return JudgedEpisode(step, reward, max(0.0, reward - FLOOR), **({"is_flagged": True} | judged | fields))


def sums(step: int, rewards: list[float]) -> StepSum:
    return StepSum(step, len(rewards), sum(rewards), sum(max(0.0, reward - FLOOR) for reward in rewards))


def test_without_verdicts_it_is_the_curve_as_trained():
    (point,) = judged_curve([sums(3, [1.0, 0.0])], [])
    assert (point.trained, point.judged, point.low, point.high, point.share) == (0.5, 0.5, None, None, 0.0)


def test_where_everything_is_judged_nothing_is_estimated():
    episodes = [episode(1, 1.0, corrected=FLOOR, is_hack=True), episode(1, 0.6, corrected=0.6)]
    (point,) = judged_curve([sums(1, [1.0, 0.6])], episodes)
    assert point.trained == pytest.approx(0.8)
    assert (point.judged, point.low, point.high) == (pytest.approx(0.4),) * 3
    assert point.share == pytest.approx(0.8 / 1.2)


def test_a_broken_reward_that_no_one_rescored_leaves_the_mean():
    episodes = [episode(1, 1.0, is_judged=True), episode(1, 0.6, corrected=0.6)]
    (point,) = judged_curve([sums(1, [1.0, 0.6])], episodes)
    assert point.judged == pytest.approx(0.6)


def test_the_blind_sample_moves_the_unflagged_and_gives_the_interval():
    rewards = [1.0] * 100
    sample = [episode(1, 1.0, is_flagged=False, corrected=FLOOR, is_hack=True) for _ in range(5)]
    sample += [episode(1, 1.0, is_flagged=False, corrected=1.0) for _ in range(5)]
    (point,) = judged_curve([sums(1, rewards)], sample)
    assert point.judged == pytest.approx((5 * FLOOR + 5 + 90 * (1 - 0.5 * 0.8)) / 100)
    assert point.low is not None
    assert point.high is not None
    # wider than Wilson's limits of the share, 0.24 to 0.76, because the 90 others differ from their expectation too
    assert point.judged - point.low == pytest.approx(0.28 * 0.8 * 0.9, abs=0.02)
    assert point.high - point.judged == pytest.approx(0.28 * 0.8 * 0.9, abs=0.02)


def test_verdicts_count_by_reward_and_by_the_inverse_of_their_chance():
    rest = sums(1, [1.0] * 100)
    sample = [
        episode(1, 1.0, is_flagged=False, corrected=FLOOR, is_hack=True, chance=0.3),
        episode(1, 1.0, is_flagged=False, corrected=1.0, chance=0.1),
    ]
    (point,) = judged_curve([rest], sample)
    assert point.judged == pytest.approx((FLOOR + 1.0 + 98 * (1 - 0.25 * 0.8)) / 100)


def test_flagged_ones_judged_by_rank_count_for_themselves_only():
    """Half of the sample are hacks, so half of the 20 are; five of them were found by their rank already."""
    by_rank = [episode(1, 1.0, corrected=FLOOR, is_hack=True) for _ in range(5)]
    sample = [episode(1, 1.0, corrected=FLOOR if hack else 1.0, is_hack=hack, chance=0.2) for hack in (True, False)]
    (point,) = judged_curve([sums(1, [1.0] * 20)], by_rank + sample + [episode(1, 1.0) for _ in range(13)])
    hacks_left = 18 * 0.5 - 5
    assert point.judged == pytest.approx((6 * FLOOR + 1.0 + 13 - hacks_left * 0.8) / 20)


@pytest.mark.parametrize(("found", "looked_at"), [(0, 7), (7, 7), (1, 40), (5, 10)])
def test_limits_are_those_of_scipy(found: int, looked_at: int):
    from scipy.stats import binomtest

    expected = binomtest(found, looked_at).proportion_ci(0.95, method="wilson")
    share = wilson(found, looked_at)
    assert (share.low, share.high) == (pytest.approx(expected.low), pytest.approx(expected.high))


def test_what_is_flagged_and_unjudged_may_be_anything():
    flagged = [episode(1, 1.0) for _ in range(10)]
    (point,) = judged_curve([sums(1, [1.0] * 10)], flagged)
    assert (point.judged, point.low, point.high) == (1.0, pytest.approx(FLOOR), 1.0)


def test_evidence_near_the_step_counts():
    before = [episode(step, 1.0, is_flagged=False, corrected=1.0) for step in range(1, 41)]
    after = [episode(step, 1.0, is_flagged=False, corrected=FLOOR, is_hack=True) for step in range(101, 141)]
    first, last = judged_curve([sums(1, [1.0] * 50), sums(140, [1.0] * 50)], before + after)
    assert first.judged == pytest.approx(1.0)
    assert last.judged == pytest.approx(FLOOR, abs=0.02)


@pytest.mark.slow
def test_the_interval_holds_the_truth_as_often_as_it_says():
    dice = random.Random(5)
    held = sum(_holds(dice) for _ in range(300))
    assert 276 <= held <= 297


def _holds(dice: random.Random) -> bool:
    """A step of 400: a quarter are hacks, of which detectors flag six in ten; some are reviewed, some are sampled."""
    rewards, honest, looked = [], [], []
    for _ in range(400):
        is_hack = dice.random() < 0.25
        reward = dice.choice([0.7, 1.0]) if is_hack else dice.choice([0.0, 0.5, 1.0])
        should = FLOOR if is_hack else reward
        rewards.append(reward)
        honest.append(should)
        is_flagged = dice.random() < (0.6 if is_hack else 0.05)
        if dice.random() < (0.4 if is_flagged else 0.15):
            looked.append(episode(1, reward, is_flagged=is_flagged, corrected=should, is_hack=is_hack))
        elif is_flagged:
            looked.append(episode(1, reward))
    (point,) = judged_curve([sums(1, rewards)], looked)
    assert point.low is not None
    assert point.high is not None
    return point.low <= sum(honest) / len(honest) <= point.high
