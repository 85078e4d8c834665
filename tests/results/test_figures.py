"""Figures of a run equal the figures computed here from the same rows."""

import numpy as np
import pytest
from scipy import stats
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Phase
from backend.results.figures import column_figures, outcomes
from backend.results.rewards import FigureScope, read_rewards
from tests.factories import make_rollouts, make_run, random_rows


def test_the_mean_and_interval_of_every_column_are_over_tasks(session: Session) -> None:
    run = make_run(session)
    rows = random_rows(60, seed=1)
    make_rollouts(session, run, rows, group_size=3)
    figures = {figure.name: figure for figure in column_figures(run, read_rewards(session, run, FigureScope(run.id)))}

    values = np.array(rows, dtype=float)
    by_name = {"win": values[:, 0], "format": values[:, 1], "invalid_move": values[:, 2]}
    by_name["reward"] = values @ np.array(run.weights)
    assert list(figures) == ["reward", "win", "format", "invalid_move"]
    for name, column in by_name.items():
        tasks = column.reshape(20, 3).mean(axis=1)
        low, high = stats.t.interval(0.95, 19, loc=tasks.mean(), scale=stats.sem(tasks))
        estimate = figures[name].estimate
        assert estimate is not None
        assert (estimate.mean, estimate.low, estimate.high) == pytest.approx((column.mean(), low, high), abs=1e-6)
        assert (estimate.count, figures[name].rollouts) == (20, 60)


def test_levels_are_kept_apart(session: Session) -> None:
    run = make_run(session)
    rows = random_rows(40, seed=2)
    make_rollouts(session, run, rows)
    win = next(
        figure
        for figure in column_figures(run, read_rewards(session, run, FigureScope(run.id)))
        if figure.name == "win"
    )
    for level in range(4):
        expected = np.mean([row[0] for row in rows[level::4] if row])
        assert win.by_level[level].mean == pytest.approx(expected)
        assert win.by_level[level].count == 10


def test_a_column_of_few_values_has_a_bar_for_each(session: Session) -> None:
    run = make_run(session)
    make_rollouts(session, run, [[0, 1, 0], [1, 1, 0], [1, 1, 0], [0.5, 1, 0]])
    win = next(
        figure
        for figure in column_figures(run, read_rewards(session, run, FigureScope(run.id)))
        if figure.name == "win"
    )
    assert [(bar.low, bar.high, bar.count) for bar in win.bars] == [(0, 0, 1), (0.5, 0.5, 1), (1, 1, 2)]


def test_a_column_of_many_values_is_binned_like_numpy_does(session: Session) -> None:
    run = make_run(session)
    rows = [[index / 99, 1.0, 0.0] for index in range(100)]
    make_rollouts(session, run, rows)
    win = next(
        figure
        for figure in column_figures(run, read_rewards(session, run, FigureScope(run.id)))
        if figure.name == "win"
    )
    counts, _ = np.histogram(np.array([row[0] for row in rows], dtype=np.float32).astype(float), bins=20)
    assert sum(bar.count for bar in win.bars) == 100
    assert [bar.count for bar in win.bars] == list(counts)
    assert win.bars[-1].high == pytest.approx(1.0)


def test_failures_are_counted_by_kind_and_never_averaged_in(session: Session) -> None:
    run = make_run(session)
    make_rollouts(session, run, [[1, 1, 0], None, [1, 1, 0], None])
    found = outcomes(session, FigureScope(run.id))
    assert (found.total, found.completed, found.failed) == (4, 2, 2)
    assert [(failure.kind, failure.count) for failure in found.failures] == [("environment", 2)]
    assert "on fire" in found.failures[0].message
    reward = column_figures(run, read_rewards(session, run, FigureScope(run.id)))[0]
    assert reward.estimate is not None
    assert reward.estimate.mean == pytest.approx(1.2)


def test_a_scope_takes_one_step_of_one_phase(session: Session) -> None:
    run = make_run(session)
    make_rollouts(session, run, [[0, 1, 0]] * 4, phase=Phase.HELDOUT, step=0)
    make_rollouts(session, run, [[1, 1, 0]] * 4, phase=Phase.HELDOUT, step=10)
    make_rollouts(session, run, [[0.5, 1, 0]] * 4, phase=Phase.TRAIN, step=10)
    win = column_figures(run, read_rewards(session, run, FigureScope(run.id, Phase.HELDOUT, 10)))[1]
    assert win.estimate is not None
    assert (win.estimate.mean, win.estimate.count) == (1.0, 4)
    found = outcomes(session, FigureScope(run.id))
    assert found.phases == {"heldout": 8, "train": 4}
    assert found.latest == {"heldout": 10, "train": 10}


def test_a_run_without_rollouts_has_no_figures(session: Session) -> None:
    run = make_run(session)
    assert outcomes(session, FigureScope(run.id)).total == 0
    assert all(
        figure.estimate is None for figure in column_figures(run, read_rewards(session, run, FigureScope(run.id)))
    )
