"""Curves of many runs in one chart: the points, the groups of seeds, the settings that differ, and the page."""

import csv
import io
import uuid
from datetime import timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update
from sqlalchemy.orm import Session

from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import RunKind, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.runs.tables import MetricPoint, Run
from tests.factories import make_environment_version, make_points, make_run


@pytest.fixture
def version(session: Session) -> EnvironmentVersion:
    return make_environment_version(session)


def train(session: Session, version: EnvironmentVersion, name: str, seed: int, **settings: Any) -> Run:
    """A training run with two points of the reward and of its tokens; `settings` are changed."""
    configuration = TrainingConfiguration(seed=seed, **settings).resolved()
    run = make_run(session, version, kind=RunKind.TRAINING, name=name, configuration=configuration)
    make_points(session, run, "reward", {1: 0.1 + seed, 2: 0.3 + seed})
    make_points(session, run, "tokens/out", {1: 100.0, 2: 50.0})
    return run


def curves(browser: TestClient, *runs: Run, **choice: Any) -> Any:
    answer = browser.get("/api/v1/curves", params={"run": [str(run.id) for run in runs], **choice})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_points_are_placed_by_steps_tokens_rollouts_and_time(
    session: Session, viewer: TestClient, version: EnvironmentVersion
) -> None:
    run = train(session, version, "one", 0)
    make_points(session, run, "reward", {2: 0.7, 3: None}, attempt=2)  # resumed: step 2 again, then NaN
    make_points(session, run, "sft/loss", {5: 2.0})
    assert run.started_at is not None
    for step in (1, 2):
        stored = update(MetricPoint).where(MetricPoint.run_id == run.id, MetricPoint.step == step)
        session.execute(stored.values(at=run.started_at + timedelta(hours=step)))
    for x, places in (("step", [1, 2]), ("tokens", [100, 150]), ("rollouts", [160, 320]), ("time", [1, 2])):
        found = curves(viewer, run, x=x, curve=["reward", "sft/loss"])
        assert (found["curves"][0]["x"], found["curves"][0]["values"]) == (places, [0.1, 0.7]), x
        assert found["curves"][0]["steps"] == [1, 2]
        assert [each["curve"] for each in found["left_out"]] == (["sft/loss"] if x in ("tokens", "rollouts") else [])
    assert found["is_raw"]


def test_a_long_curve_keeps_its_spikes_and_a_range_has_all_points(
    session: Session, viewer: TestClient, version: EnvironmentVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(session, version, "long", 0)
    make_points(session, run, "entropy", {step: 9.0 if step == 333 else step % 7 / 100 for step in range(1, 1001)})
    whole = curves(viewer, run, curve="entropy", points=100)
    assert not whole["is_raw"]
    assert len(whole["curves"][0]["x"]) <= 100
    assert max(whole["curves"][0]["values"]) == 9.0
    part = curves(viewer, run, curve="entropy", points=100, low=300, high=340)
    assert part["is_raw"]
    assert part["curves"][0]["x"] == list(range(299, 342)), "one more point at either end"
    assert part["extent"] == [1, 1000]
    monkeypatch.setattr("backend.runs.curves.MAX_READ", 300)
    thinned = curves(viewer, run, curve="entropy")
    assert not thinned["is_raw"]
    assert 9.0 in thinned["curves"][0]["values"]


def test_seeds_of_one_configuration_are_a_mean_with_a_band(
    session: Session, viewer: TestClient, version: EnvironmentVersion
) -> None:
    seeds = [train(session, version, "one", seed) for seed in (0, 1, 2)]
    other = train(session, version, "other", 3, grpo={"learning_rate": 1e-4})
    group, alone = curves(viewer, *seeds, other, group=True)["curves"]
    assert (group["label"], group["runs"]) == ("one (3 seeds)", [str(run.id) for run in seeds])
    assert group["values"] == pytest.approx([1.1, 1.3])
    reach = 4.302653 / 3**0.5  # Student's t with 2 degrees of freedom; the deviation is 1
    assert group["low"] == pytest.approx([1.1 - reach, 1.3 - reach])
    assert (alone["label"], alone["low"]) == ("other", None)
    ends = curves(viewer, *seeds, group=True, band="range")["curves"][0]
    assert (ends["low"], ends["high"]) == (pytest.approx([0.1, 0.3]), pytest.approx([2.1, 2.3]))
    labels = [each["label"] for each in curves(viewer, *seeds)["curves"]]
    assert labels == ["one, seed 0", "one, seed 1", "one, seed 2"]


@pytest.mark.slow
def test_smoothing_is_an_average_weighted_by_distance(
    session: Session, viewer: TestClient, version: EnvironmentVersion
) -> None:
    run = train(session, version, "one", 0)
    [curve] = curves(viewer, run, smoothing=0.998)["curves"]
    decay = (0.998**0.5) ** 1000  # the two points are the whole width of the chart apart
    assert curve["values"] == pytest.approx([0.1, (0.1 * decay + 0.3) / (decay + 1)])
    assert curve["unsmoothed"]["values"] == [0.1, 0.3]


@pytest.mark.slow
def test_more_curves_than_a_chart_has_are_refused_and_lose_nothing(
    session: Session, viewer: TestClient, version: EnvironmentVersion
) -> None:
    runs = [make_run(session, version, kind=RunKind.TRAINING, name=f"many {n}") for n in range(102)]
    ids = [str(run.id) for run in runs]
    answer = viewer.get("/api/v1/curves", params={"run": ids})
    assert answer.status_code == 422
    assert "at most 100 curves" in answer.text
    page = viewer.get("/runs/chart", params={"run": [*ids, str(uuid.uuid4())]})
    assert page.status_code == 200
    assert "102 runs are selected, and one chart draws at most 100 curves" in page.text
    assert "1 of the selected runs do not exist" in page.text
    assert page.text.count('type="hidden" name="run"') == 103
    assert page.text.count("not drawn") == 2


@pytest.mark.parametrize(
    "query", ["run=nothing", "smoothing=2", "x=color", f"{'curve=reward&' * 9}", "low=NaN&points=1"]
)
def test_bad_choices_are_explained(viewer: TestClient, query: str) -> None:
    assert viewer.get(f"/api/v1/curves?{query}").status_code == 422
    assert viewer.get(f"/runs/chart?{query}").status_code == 422


def test_the_page_holds_the_choice_and_the_settings_that_differ(
    session: Session, viewer: TestClient, version: EnvironmentVersion
) -> None:
    one = train(session, version, "one <b>", 0)
    two = train(session, version, "two", 1, grpo={"learning_rate": 1e-4})
    two.status = RunStatus.RUNNING
    session.flush()
    html = viewer.get(f"/runs/chart?run={one.id}&run={two.id}&x=time&group=true&smoothing=0.5&log=true&low=1").text
    assert "one &lt;b&gt;" in html
    assert '<option value="time" selected>' in html
    assert 'name="log" value="true" checked' in html
    assert f"/api/v1/curves/file?run={one.id}&amp;run={two.id}&amp;x=time" in html
    assert "/runs/chart/events?" in html
    differences = html[html.index('id="differences"') : html.index('id="chart-runs"')]
    assert "Learning rate" in differences
    assert "0.0005 <span" in differences
    assert differences.count("(default)") == 2, "the learning rate and the seed of the first run"
    assert "Temperature" not in differences
    assert "Choose runs to draw" in viewer.get("/runs/chart").text
    assert f"/runs/chart?run={one.id}" in viewer.get(f"/runs/{one.id}").text


def test_the_file_has_every_point_and_no_formula(
    session: Session, viewer: TestClient, version: EnvironmentVersion
) -> None:
    run = train(session, version, "=HYPERLINK()", 0)
    answer = viewer.get("/api/v1/curves/file", params={"run": str(run.id), "low": 2})
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert viewer.get("/api/v1/curves/file", params={"run": str(uuid.uuid4())}).status_code == 422
    assert list(csv.reader(io.StringIO(answer.text))) == [
        ["run", "name", "metric", "step", "training step", "value"],
        [str(run.id), "'=HYPERLINK()", "reward", "2", "2.0", "0.3"],
    ]
