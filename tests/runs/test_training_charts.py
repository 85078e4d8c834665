"""Which curves a training run's page draws in addition to the main ones."""

from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from backend.domain.vocabulary import RunKind, RunStatus
from backend.runs.charts import Chart, charts_of
from backend.runs.header import RunHeader
from backend.runs.tables import Run
from tests.factories import make_points, make_run


def more(run: Run, *names: str) -> dict[str, Chart]:
    return {chart.key: chart for chart in charts_of(run, names)[1]}


def labels(chart: Chart) -> list[str]:
    return [series.label for series in chart.series]


def test_each_column_has_its_spread(session: Session, viewer: TestClient) -> None:
    run = make_run(session, kind=RunKind.TRAINING)
    for curve in ("columns_p90", "columns", "columns_p50", "columns_p10", "columns_std"):
        make_points(session, run, f"{curve}/win", {1: 0.5, 2: 0.6})
    html = viewer.get(f"/runs/{run.id}").text
    assert f"/runs/{run.id}/points.json?chart=spread/win" in html
    assert "chart=columns_p10/win" not in html
    answer = viewer.get(f"/runs/{run.id}/points.json?chart=spread/win").json()
    assert [series["label"] for series in answer["series"]] == ["p90", "mean", "median", "p10"]
    assert labels(more(run, "columns_std/win")["deviations"]) == ["win"]


def test_columns_are_drawn_by_level_and_by_environment(session: Session) -> None:
    run = make_run(session, kind=RunKind.TRAINING)
    charts = more(run, *(f"columns_level/{level}/win" for level in (0, 2, 10)), "columns_environment/guess/win")
    assert labels(charts["level/win"]) == ["level 0", "level 2", "level 10"]
    assert labels(charts["environment/win"]) == ["guess"]


def test_the_spread_of_a_column_is_drawn_by_level_environment_and_level_within_it(session: Session) -> None:
    run = make_run(session, kind=RunKind.TRAINING)
    curves = ("columns_{}", "columns_{}_std", "columns_{}_p10", "columns_{}_p50", "columns_{}_p90")
    places = {"level": ("2", "10"), "environment": ("guess", "game"), "environment_level": ("guess/2", "guess/10")}
    names = [
        f"{curve.format(part)}/{place}/win" for part, found in places.items() for place in found for curve in curves
    ]
    charts = more(run, *names)
    drawn = {series.name for chart in charts.values() for series in chart.series}
    assert set(names) <= drawn
    assert len(charts) == 3 * (1 + 1 + 2)
    assert labels(charts["environment_level/guess/win"]) == ["level 2", "level 10"]
    assert labels(charts["deviations/level/win"]) == ["level 2", "level 10"]
    assert labels(charts["spread/environment_level/guess/10/win"]) == ["p90", "mean", "median", "p10"]
    assert charts["spread/environment_level/guess/10/win"].title == "Spread of win, guess, level 10"
    assert charts["spread/level/2/win"].title == "Spread of win, level 2"


def test_a_climbing_window_is_drawn_with_the_success_that_moves_it(session: Session, viewer: TestClient) -> None:
    run = make_run(session, kind=RunKind.TRAINING)
    for name, value in (("low", 0.0), ("high", 2.0), ("success", 0.7)):
        make_points(session, run, f"curriculum/ladder/{name}", {1: value, 2: value})
    main = {chart.key: chart for chart in charts_of(run, ["curriculum/ladder/high", "curriculum/ladder/low"])[0]}
    assert labels(main["curriculum/ladder"]) == ["top level", "lowest level"]
    assert labels(main["curriculum-success"]) == ["ladder"]
    assert "chart=curriculum/ladder" in viewer.get(f"/runs/{run.id}").text
    answer = viewer.get(f"/runs/{run.id}/points.json?chart=curriculum/ladder").json()
    assert [series["values"] for series in answer["series"]] == [[2.0, 2.0], [0.0, 0.0]]


def test_a_mix_is_drawn_by_environment(session: Session) -> None:
    run = make_run(session, kind=RunKind.TRAINING)
    names = ["environment/guess", "environment/ladder", "heldout/environment/guess"]
    main = {chart.key: chart for chart in charts_of(run, names)[0]}
    assert labels(main["environments"]) == ["guess", "ladder"]
    assert labels(main["heldout-environments"]) == ["guess"]


def test_each_environment_of_a_mix_is_drawn_by_its_levels(session: Session) -> None:
    run = make_run(session, kind=RunKind.TRAINING)
    charts = more(run, *(f"heldout/environment_level/guess/{level}" for level in (10, 2)), "environment_level/ladder/0")
    assert labels(charts["heldout/environment_level/guess"]) == ["level 2", "level 10"]
    assert labels(charts["environment_level/ladder"]) == ["level 0"]


def test_time_tokens_and_ratios_have_charts(session: Session) -> None:
    run = make_run(session, kind=RunKind.TRAINING)
    names = ["seconds/rollouts", "seconds/step", "seconds/detectors", "sft/seconds/idle", "tokens/in", "ratio/mean"]
    charts = more(run, *names, "ratio/low_clip")
    learning = ["forward", "backward", "optimiser", "other", "idle"]
    assert labels(charts["seconds/rollouts"]) == ["rollouts", "reward", *learning]
    assert labels(charts["seconds/storing"]) == ["storing", "detectors", "steering", "examination"]
    assert labels(charts["sft/seconds/forward"]) == learning
    assert labels(charts["ratio/mean"]) == ["mean", "max"]
    assert labels(charts["ratio/low_clip"]) == ["low", "high"]
    assert "seconds/step" in charts


def test_a_run_that_samples_ahead_shows_its_staleness_overlap_and_speed(session: Session) -> None:
    run = make_run(session, kind=RunKind.TRAINING)
    names = ["staleness", "ahead/overlap", "ratio/truncated", "tokens_per_second", "ahead/tokens_per_second"]
    main = {chart.key: chart for chart in charts_of(run, names)[0]}
    assert labels(main["ahead/overlap"]) == ["learning while sampling", "limited weights"]
    assert labels(main["tokens_per_second"]) == ["training", "sampling process"]
    assert "staleness" in main
    assert "staleness" not in {chart.key for chart in charts_of(run, ["tokens_per_second"])[0]}


def test_what_replacement_throws_away_is_drawn_where_it_is_on(session: Session) -> None:
    plain = make_run(session, kind=RunKind.TRAINING)
    replacing = make_run(session, kind=RunKind.TRAINING, configuration={"grpo": {"replace_uniform": 2}})
    drawn = [
        next(chart for chart in charts_of(run, [])[0] if chart.key == "groups/no_variance")
        for run in (plain, replacing)
    ]
    assert [len(chart.series) for chart in drawn] == [1, 2]


def test_the_time_left_is_as_the_worker_foresees_it(session: Session) -> None:
    progress = {"phase": "grpo", "done": 10, "total": 110, "rate": 10.0}
    run = make_run(session, kind=RunKind.TRAINING, status=RunStatus.RUNNING, progress=progress)
    head = RunHeader(run, 0, 0, is_settled=False)
    assert head.run.seconds_left == 10.0
    run.progress = {**progress, "seconds_left": 321.5}
    assert head.run.seconds_left == 321.5
