"""The search: which point comes next, which runs are pruned, which settings mattered."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from backend.domain.sweeps.space import Axis, Point
from backend.domain.sweeps.sweep import SweepPruner, SweepSampler, SweepSettings, TrialState
from workers.sweeps.search import HeldoutReward, Search, TrialRecord

START = datetime(2026, 1, 1, tzinfo=UTC)
SPACE = {"rate": Axis(low=1e-5, high=1e-1, log=True), "size": Axis(values=[4, 8, "auto"])}


def settings(space: Mapping[str, Axis] = SPACE, **fields: Any) -> SweepSettings:
    return SweepSettings(**{"space": dict(space), "trials": 50, "startup_trials": 3, **fields})


def record(
    number: int, rewards: Sequence[float], state: TrialState = TrialState.COMPLETED, values: Point | None = None
) -> TrialRecord:
    """With a held-out reward every 10 steps, one hour after the other."""
    points = [HeldoutReward(10 * n, reward, START + timedelta(hours=n)) for n, reward in enumerate(rewards, 1)]
    own = {"rate": 0.001 * number, "size": 8} if values is None else values
    best = max(rewards, default=None) if state is TrialState.COMPLETED else None
    return TrialRecord(number, own, state, best, points)


def search(chosen: SweepSettings, trials: Sequence[TrialRecord] = ()) -> Search:
    return Search(chosen, trials, first_rung=10)


def test_a_grid_is_covered_once() -> None:
    space = {"a": Axis(values=[1, 2, 3]), "b": Axis(low=0, high=1, points=2)}
    chosen, done = settings(space, sampler=SweepSampler.GRID), list[TrialRecord]()
    while point := search(chosen, done).next_point():
        done.append(record(len(done) + 1, [0.5], values=point))
    assert len(done) == 6
    assert {(each.values["a"], each.values["b"]) for each in done} == {(a, b) for a in (1, 2, 3) for b in (0.0, 1.0)}


@pytest.mark.parametrize("sampler", [SweepSampler.RANDOM, SweepSampler.TPE])
def test_points_are_inside_of_the_space_and_never_repeated(sampler: SweepSampler) -> None:
    space = {"a": Axis(values=["x", None]), "b": Axis(low=1, high=3, is_whole=True)}
    found, asked = list[Point](), search(settings(space, sampler=sampler))
    while point := asked.next_point():
        found.append(point)
    assert len(found) == 6, "every combination, then the end"
    assert all(point["a"] in {"x", None} and point["b"] in {1, 2, 3} for point in found)


def test_a_search_that_is_rebuilt_continues_in_the_same_way() -> None:
    done = [record(n, [n / 10]) for n in range(1, 8)]
    assert search(settings(), done).next_point() == search(settings(), done).next_point()
    assert search(settings(seed=1), done).next_point() != search(settings(seed=2), done).next_point()


def test_tpe_samples_near_the_best_values() -> None:
    space = {"x": Axis(low=0, high=1)}
    done = [record(n, [-abs(n / 20 - 0.8)], values={"x": n / 20}) for n in range(20)]
    done = [TrialRecord(place, each.values, each.state, each.reward) for place, each in enumerate(done, 1)]
    points = [search(settings(space, seed=seed), done).next_point() for seed in range(0, 2000, 100)]
    near = sum(abs(point["x"] - 0.8) < 0.2 for point in points if point)  # type: ignore[operator]
    assert near >= 14, f"{near} of 20"


def test_the_median_pruner_stops_a_run_below_the_others() -> None:
    done = [record(n, [0.3, 0.4 + n / 100, 0.9]) for n in (1, 2, 3)]
    asked = search(
        settings(), [*done, record(4, [0.3, 0.31], TrialState.RUNNING), record(5, [0.5], TrialState.RUNNING)]
    )
    assert asked.to_prune() == {
        4: "Pruned after step 20: its best held-out reward, 0.310, is below the median of the finished runs at this"
        " step, 0.420."
    }
    assert search(settings(), [*done[:2], record(3, [0.1], TrialState.RUNNING)]).to_prune() == {}, "too few finished"
    unpruned = settings(pruner=SweepPruner.NONE)
    assert search(unpruned, [*done, record(4, [0.0, 0.0], TrialState.RUNNING)]).to_prune() == {}


def test_successive_halving_keeps_the_best_third_of_each_rung() -> None:
    done = [record(n, [n / 10, n / 10, n / 10]) for n in range(1, 7)]
    running = [record(7, [0.55, 0.55], TrialState.RUNNING), record(8, [0.05], TrialState.RUNNING)]
    found = search(settings(pruner=SweepPruner.HALVING), [*done, *running]).to_prune()
    assert list(found) == [8]
    assert "best third" in found[8]


def test_importance_finds_the_setting_that_matters() -> None:
    done = []
    for number in range(1, 21):
        values: Point = {"rate": 0.005 * number, "size": [4, 8, "auto"][number % 3]}
        done.append(record(number, [number / 20], values=values))
    found = search(settings(), done).importance()
    assert found is not None
    assert list(found) == ["rate", "size"]
    assert found["rate"] > 0.7
    assert sum(found.values()) == pytest.approx(1)
    assert search(settings(), done[:7]).importance() is None, "too few"
    assert search(settings(), [record(n, [0.5]) for n in range(1, 12)]).importance() is None, "all the same"


def test_trials_without_a_reward_count_as_failed_and_pruned_ones_with_their_last() -> None:
    trials = [
        record(1, [], TrialState.FAILED),
        record(2, [], TrialState.COMPLETED),
        record(3, [0.2], TrialState.PRUNED),
        record(4, [], TrialState.STOPPED),
        record(5, [0.9]),
    ]
    assert search(settings(), trials).next_point() is not None
