"""A run's page shows the numbers that its rows add up to."""

import re
import uuid

import numpy as np
import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Phase, RunKind, RunStatus
from backend.runs.charts import Series, Window, columnar_points
from backend.runs.header import RunHeader
from backend.runs.tables import Run, RunLogLine
from tests.factories import make_checkpoint, make_flag, make_points, make_policy, make_rollouts, make_run, random_rows
from tests.statements import statements_of

TABS = ["", "/rollouts", "/groups", "/flags", "/configuration", "/log"]


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def test_the_overview_shows_the_means_of_every_column(session: Session, viewer: TestClient) -> None:
    run = make_run(session)
    rows = random_rows(80, seed=5, failing=0.1)
    make_rollouts(session, run, rows)
    page = text_of(viewer.get(f"/runs/{run.id}").text)
    done = np.array([row for row in rows if row])
    assert f"{len(done)} of 80" in page
    assert f"{80 - len(done)} failed" in page
    for column in range(3):
        assert f"{done[:, column].mean():.3f}" in page
    assert f"{(done @ np.array(run.weights)).mean():.3f}" in page
    assert "the board is on fire" in page


def test_rollouts_that_were_played_again_count_once_when_it_is_over(session: Session) -> None:
    run = make_run(session, summary={"rollouts": 10}, next_seq=21)
    assert RunHeader(run, 0, 0, True).rollout_count == 10
    run.status = RunStatus.RUNNING
    assert RunHeader(run, 0, 0, False).rollout_count == 20


@pytest.mark.parametrize("tab", TABS)
def test_every_tab_represents_every_kind_and_status(session: Session, viewer: TestClient, tab: str) -> None:
    for kind in RunKind:
        for status in (RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.FAILED):
            run = make_run(session, kind=kind, status=status, reason="It broke." if status.is_over else None)
            answer = viewer.get(f"/runs/{run.id}{tab}")
            assert answer.status_code == 200
            assert run.name in answer.text


def test_a_training_run_shows_its_newest_heldout_evaluation_and_its_curves(
    session: Session, viewer: TestClient
) -> None:
    run = make_run(session, kind=RunKind.TRAINING)
    make_rollouts(session, run, [[0, 0.5, 2]] * 8, phase=Phase.HELDOUT, step=0)
    make_rollouts(session, run, [[1, 0.9, 0]] * 8, phase=Phase.HELDOUT, step=20)
    make_rollouts(session, run, [[0.5, 0.7, 1]] * 8, phase=Phase.TRAIN, step=25, advantage=0.25)
    make_checkpoint(session, make_policy(session), run, step=20, is_best=True, heldout_reward=1.18)
    make_points(session, run, "level/0", {1: 0.5})
    html = viewer.get(f"/runs/{run.id}").text
    page = text_of(html)
    assert "held-out reward" in page.lower()
    assert "the phase heldout, step 20" in page
    assert "1.180" in page
    for chart in ("reward", "columns", "heldout", "entropy", "groups/no_variance", "levels"):
        assert f'data-chart="/runs/{run.id}/points.json?chart={chart}"' in html
    step_0 = text_of(viewer.get(f"/runs/{run.id}?phase=heldout&step=0").text)
    assert "step 0" in step_0
    assert "−0.100" in step_0


def test_the_warm_up_stands_first_until_reinforcement_has_begun(session: Session, viewer: TestClient) -> None:
    run = make_run(session, kind=RunKind.TRAINING, configuration={"sft": {"steps": 40}})
    assert drawn_charts(viewer, run)[:3] == ["sft/loss", "sft/accuracy", "reward"]
    make_points(session, run, "reward", {1: 0.5})
    assert drawn_charts(viewer, run)[0] == "reward"
    assert drawn_charts(viewer, run)[-2:] == ["sft/loss", "sft/accuracy"]
    html = viewer.get(f"/runs/{run.id}").text
    loss = html[html.index("chart=sft/loss") :]
    assert "data-step-url" not in loss[: loss.index(">")]


def drawn_charts(viewer: TestClient, run: Run) -> list[str]:
    return re.findall(r'data-chart="[^"]*chart=([^"]+)"', viewer.get(f"/runs/{run.id}").text)


def test_points_come_as_columns(session: Session, viewer: TestClient) -> None:
    run = make_run(session, kind=RunKind.TRAINING)
    make_points(session, run, "reward", {1: 0.1, 2: None, 3: 0.3})
    make_points(session, run, "heldout/reward", {3: 0.5})
    make_points(session, run, "reward", {3: 0.35}, attempt=2)
    answer = viewer.get(f"/runs/{run.id}/points.json?chart=reward").json()
    assert answer["x"] == [1, 2, 3]
    assert [series["values"] for series in answer["series"]] == [[0.1, None, 0.35], [None, None, 0.5]]
    assert answer["cursor"] == "3"
    make_points(session, run, "reward", {4: 0.4})
    news = viewer.get(f"/runs/{run.id}/points.json?chart=reward&after=3").json()
    assert news["x"] == [3, 4]
    assert viewer.get(f"/runs/{run.id}/points.json?chart=nothing").json() == {"x": [], "series": [], "cursor": ""}
    api = viewer.get(f"/api/v1/runs/{run.id}/points?name=reward").json()
    assert api["series"][0]["values"] == [0.1, None, 0.35, 0.4]


def test_long_curves_are_thinned_and_keep_their_spikes(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.runs.charts.MAX_POINTS", 200)
    run = make_run(session, kind=RunKind.TRAINING)
    values: dict[int, float | None] = {step: float(np.sin(step / 50)) for step in range(900)}
    values[123], values[777] = 99.0, -99.0
    make_points(session, run, "loss", values)
    found = columnar_points(session, run, [Series("loss", "loss")], Window())
    drawn = found["series"][0]["values"]
    assert len(drawn) <= 200
    assert max(drawn) == 99.0
    assert min(drawn) == -99.0
    whole = columnar_points(session, run, [Series("loss", "loss")], Window(low=100, high=200))
    assert whole["x"] == list(range(100, 201))


def test_model_text_is_escaped_everywhere(session: Session, viewer: TestClient) -> None:
    hostile = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)> {{ 7*7 }}"
    run = make_run(session, name=hostile, status=RunStatus.FAILED, reason=hostile)
    messages = [{"role": "user", "content": hostile}, {"role": "assistant", "content": hostile}]
    done, failed = make_rollouts(session, run, [[1, 1, 0], None], messages=messages, excerpt=hostile)
    failed.error_message = hostile
    make_flag(session, run, done, sentence=hostile)
    session.add(RunLogLine(run_id=run.id, level="info", message=hostile))
    session.flush()
    pages = ["/runs", *(f"/runs/{run.id}{tab}" for tab in TABS), f"/rollouts/{done.id}", f"/rollouts/{failed.id}"]
    for path in pages:
        html = viewer.get(path).text
        assert "&lt;script&gt;" in html, path
        assert "<script>alert" not in html, path
        assert "<img src=x" not in html, path
        assert "49" not in re.findall(r"onerror=alert\(1\)&gt; (\S+)", html), path


def test_the_list_filters_and_pages(session: Session, viewer: TestClient) -> None:
    first = make_run(session, name="alpha 100%")
    make_run(session, first.version, name="beta", status=RunStatus.FAILED)
    other = make_run(session, name="gamma", kind=RunKind.TRAINING)

    def names(query: str) -> list[str]:
        return [run["name"] for run in viewer.get(f"/api/v1/runs?{query}").json()["items"]]

    assert names("") == ["gamma", "beta", "alpha 100%"]
    assert names("kind=training") == ["gamma"]
    assert names("status=failed") == ["beta"]
    assert set(names(f"environment={first.version.environment.name}")) == {"alpha 100%", "beta"}
    assert names("text=100%25") == ["alpha 100%"]
    assert names(f"policy_id={other.policy_id}&status=") == ["gamma"]
    page = viewer.get("/api/v1/runs?limit=2").json()
    rest = viewer.get(f"/api/v1/runs?limit=2&after={page['next']}").json()
    assert len(page["items"]) + len(rest["items"]) == 3
    assert rest["next"] is None
    html = viewer.get("/runs?kind=training").text
    assert "gamma" in html
    assert "beta" not in html
    assert viewer.get("/api/v1/runs?kind=nonsense").status_code == 422


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "most"), [("", 8), ("/rollouts", 7), ("/groups", 3), ("/flags", 4), ("/configuration", 2), ("/log", 3)]
)
def test_a_page_takes_few_statements(session: Session, viewer: TestClient, path: str, most: int) -> None:
    run = make_run(session)
    make_rollouts(session, run, random_rows(60), group_size=2)
    viewer.get(f"/runs/{run.id}{path}")
    session.expunge_all()
    with statements_of(session) as statements:
        viewer.get(f"/runs/{run.id}{path}")
    asked = [line for line in statements if line.lstrip().startswith(("SELECT", "WITH")) and "web_sessions" not in line]
    assert len(asked) <= most, asked


def test_the_list_shows_what_each_kind_reached(session: Session, viewer: TestClient) -> None:
    make_run(session, summary={"reward": {"mean": 0.5125, "low": 0.4, "high": 0.6, "count": 40}})
    make_run(session, kind=RunKind.TRAINING, summary={"best": {"step": 20, "heldout_reward": 0.875}})
    make_run(session, kind=RunKind.PLAY, summary={"reward": 0.25})
    page = text_of(viewer.get("/runs").text)
    for shown in ("0.512 ± 0.100", "0.875 held-out", "0.250"):
        assert shown in page


def test_the_log_is_shown_in_order(session: Session, viewer: TestClient) -> None:
    run = make_run(session)
    for number in range(3):
        session.add(RunLogLine(run_id=run.id, level="info", message=f"line {number}"))
        session.flush()
    html = viewer.get(f"/runs/{run.id}/log").text
    assert html.index("line 0") < html.index("line 1") < html.index("line 2")
    items = viewer.get(f"/api/v1/runs/{run.id}/log").json()["items"]
    assert [item["message"] for item in items] == ["line 0", "line 1", "line 2"]


def test_a_missing_run_is_not_found(viewer: TestClient, stranger: TestClient, session: Session) -> None:
    run: Run = make_run(session)
    for tab in [*TABS, "/points.json?chart=reward"]:
        assert viewer.get(f"/runs/{uuid.UUID(int=1)}{tab}").status_code == 404
        assert stranger.get(f"/runs/{run.id}{tab}").status_code in {303, 401}
