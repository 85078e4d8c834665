"""Sample sizes: a planned comparison detects the difference as often as it was planned to."""

import math

import numpy as np
import pytest
from fastapi.testclient import TestClient
from numpy.typing import NDArray
from scipy.special import nctdtr, stdtrit
from sqlalchemy.orm import Session

from backend.domain.results.power import (
    TaskSpreads,
    detectable_difference,
    difference_variance,
    power_of,
    tasks_needed,
)
from tests.factories import make_rollouts, make_run

Rewards = NDArray[np.float64]


def play(dice: np.random.Generator, shape: tuple[int, ...], size: int, gain: float) -> tuple[Rewards, Rewards]:
    """Mean binary rewards of two policies on the same tasks, the second better by `gain`, but not on each task."""
    easy = 0.15 + dice.beta(1.5, 1.5, shape) * 0.5
    better = easy + gain + dice.choice([-0.15, 0.15], shape)
    return dice.binomial(size, easy) / size, dice.binomial(size, better) / size


def spreads(means: Rewards, size: int) -> TaskSpreads:
    """Of binary rewards."""
    variances = means * (1 - means) * size / (size - 1) if size > 1 else np.full(len(means), np.nan)
    return TaskSpreads(np.full(len(means), size), means, variances)


@pytest.mark.parametrize(("gain", "size"), [(0.1, 1), (0.1, 4), (0.2, 8)])
def test_the_power_of_planned_comparisons_is_within_three_points(gain: float, size: int) -> None:
    """Variances come from a pilot with four rollouts per task; the planned comparisons may have another number."""
    dice = np.random.default_rng(size)
    before, after = play(dice, (20_000,), 4, gain)
    variance = difference_variance(spreads(before, 4), spreads(after, 4))
    assert variance is not None
    tasks = tasks_needed(gain, variance.of_task(size))
    assert tasks is not None
    one, other = play(dice, (4000, tasks), size, gain)
    differences = other - one
    deviations = differences.std(axis=1, ddof=1)
    found = np.abs(differences.mean(axis=1)) > stdtrit(tasks - 1, 0.975) * deviations / math.sqrt(tasks)
    assert abs(found.mean() - 0.8) < 0.03


@pytest.mark.parametrize(("tasks", "shift"), [(2, 3.0), (10, 2.0), (200, 2.8)])
def test_power_is_that_of_the_noncentral_t(tasks: int, shift: float) -> None:
    limit = stdtrit(tasks - 1, 0.975)
    expected = 1 - nctdtr(tasks - 1, shift, limit) + nctdtr(tasks - 1, shift, -limit)
    assert power_of(tasks, shift / math.sqrt(tasks), 1.0) == pytest.approx(expected, abs=2e-4)


def test_what_is_detectable_needs_these_tasks() -> None:
    difference = detectable_difference(120, 0.3)
    assert difference is not None
    assert power_of(120, difference, 0.3) == pytest.approx(0.8)
    assert tasks_needed(difference * 1.0001, 0.3) == 120
    assert detectable_difference(1, 0.3) is None
    assert tasks_needed(1e-9, 0.3) is None
    assert tasks_needed(0.1, 0.0) == 2


def test_one_side_alone_counts_twice_and_single_rollouts_are_not_split() -> None:
    side = TaskSpreads(np.array([2, 2, 2]), np.array([0.0, 0.5, 1.0]), np.array([0.0, 0.5, 0.0]))
    variance = difference_variance(side)
    assert variance is not None
    assert (variance.within, variance.between) == (pytest.approx(2 / 6), pytest.approx(2 * (0.25 - 1 / 12)))
    single = difference_variance(spreads(side.means, 1))
    assert single is not None
    assert (single.is_split, single.within, single.of_task(8)) == (False, 0.0, 0.5)
    assert difference_variance(spreads(side.means[:1], 2)) is None


def test_two_runs_plan_a_third(session: Session, viewer: TestClient) -> None:
    dice = np.random.default_rng(3)
    first = make_run(session)
    second = make_run(session, first.version)
    for run, chance in ((first, 0.4), (second, 0.6)):
        wins = dice.random(80) < chance
        make_rollouts(session, run, [[float(win), 1.0, 0.0] for win in wins], group_size=4)
    request = {"run": str(first.id), "against": str(second.id), "difference": 0.1}
    plan = viewer.get("/api/v1/plan", params=request).json()
    assert (plan["is_paired"], plan["observed_tasks"], plan["group_size"]) == (True, 20, 4)
    sizes = {option["group_size"]: option["tasks"] for option in plan["options"]}
    assert sizes[1] > sizes[4] > sizes[16]
    assert sizes[4] == plan["tasks"]
    alone = viewer.get("/api/v1/plan", params={"run": str(first.id), "difference": 0.1}).json()
    assert alone["is_paired"] is False
    assert viewer.get("/api/v1/plan", params=request | {"difference": 0}).status_code == 422
    assert viewer.get("/api/v1/plan", params={"run": str(make_run(session).id)}).status_code == 422
    page = viewer.get("/compare", params={"run": [str(first.id), str(second.id)], "detect": 0.1}).text
    assert f"{plan['tasks']:,} tasks" in page


def test_the_estimate_of_an_evaluation_states_what_it_detects(session: Session, author: TestClient) -> None:
    run = make_run(session)
    make_rollouts(session, run, [[float(n % 3 == 0), 1.0, 0.0] for n in range(40)], group_size=2)
    known = {"version_id": str(run.version_id), "policy_id": str(run.policy_id), "tasks": "50", "group_size": "2"}
    assert "a difference of" in author.get("/evaluations/estimate", params=known).text
    other = known | {"version_id": str(make_run(session).version_id)}
    assert "a difference of" not in author.get("/evaluations/estimate", params=other).text
