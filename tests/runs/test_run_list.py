"""The list of runs: filter, order, columns, pinned runs and saved views."""

import re
import uuid
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.domain.vocabulary import RunKind, RunStatus
from backend.rollouts.tables import Listing, SavedView
from backend.runs.tables import MetricPoint, Run
from tests.factories import make_environment_version, make_policy, make_run

EVALUATED = {"reward": {"mean": 0.75, "low": 0.7, "high": 0.8}, "tokens_out": 1200, "completed": 4}


@pytest.fixture
def three(session: Session) -> tuple[Run, Run, Run]:
    """An evaluation, a training run and a failed check, which is the newest."""
    version, policy = make_environment_version(session), make_policy(session)
    evaluation = make_run(session, version, policy, name="alpha", summary=EVALUATED, tags=["paper"], seed=7)
    training = make_run(
        session,
        version,
        policy,
        name="beta",
        kind=RunKind.TRAINING,
        summary={"best": {"heldout_reward": 0.5, "stage": "grpo", "step": 3}},
        progress={"done": 12, "total": 12},
        configuration={"grpo": {"learning_rate": 0.001}, "model": {"source": "base", "base": "org/tiny"}},
    )
    failed = make_run(session, version, policy, name="gamma", kind=RunKind.CHECK, status=RunStatus.FAILED)
    points = {(1, 1): 0.9, (2, 1): 0.3, (2, 2): 0.4}
    for (step, attempt), value in points.items():
        session.add(MetricPoint(run_id=training.id, name="heldout/reward", step=step, attempt=attempt, value=value))
    session.flush()
    return evaluation, training, failed


def listed(client: TestClient, **query: Any) -> list[str]:
    page = client.get("/runs", params=query).text
    return re.findall(r'aria-label="Select ([^"]*)"', page)


def test_filters_of_the_filter_language_find_runs(viewer: TestClient, three: object) -> None:
    found = {
        "status = failed": ["gamma"],
        "kind in (training, check)": ["gamma", "beta"],
        "tag = paper": ["alpha"],
        "not has tag and name ~ AM": ["gamma"],
        "tag ~ pap": ["alpha"],
        "tag != paper": ["gamma", "beta"],
        "reward >= 0.5": ["beta", "alpha"],
        "heldout = 0.4": ["beta"],
        "metric.heldout/reward < 0.5": ["beta"],
        "steps = 12 and learning_rate = 0.001 and base = org/tiny": ["beta"],
        "tokens > 1000 or seed = 8": ["alpha"],
        "duration = 120": ["gamma", "beta", "alpha"],
        "created > 2020-01-01 and created <= 2999-12-31 and age < 1": ["gamma", "beta", "alpha"],
        "created = 2020-01-01": [],
        "started < 2999-01-01T10:00 and has ended": ["gamma", "beta", "alpha"],
        "has owner": [],
        "pinned": [],
        'project = "nowhere"': [],
    }
    for where, names in found.items():
        assert listed(viewer, where=where) == names, where
        answer = viewer.get("/api/v1/runs", params={"where": where}).json()["items"]
        assert [each["name"] for each in answer] == names, where
    assert listed(viewer, where="reward > 0.1", kind="training") == ["beta"]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("rewrad > 1", "There is no field `rewrad`. Did you mean"),
        ("created > yesterday", "`created` is a date such as 2026-11-01, but `yesterday` is not."),
        ("created > 9999-12-31", "is a date"),
        ("(" * 30, "Nested deeper than 20 levels."),
        ("progress = 1", "There is no field `progress`"),
    ],
)
def test_a_wrong_filter_is_marked(viewer: TestClient, where: str, message: str) -> None:
    page = viewer.get("/runs", params={"where": where})
    assert page.status_code == 200
    assert message in page.text
    assert 'role="alert"' in page.text
    answer = viewer.get("/api/v1/runs", params={"where": where})
    assert answer.status_code == 422
    assert message in str(answer.json())


def test_every_column_is_shown_and_sorts_both_ways(viewer: TestClient, three: object) -> None:
    every = "status kind environment version policy base recipe reward heldout progress steps rollouts failed tokens"
    every += " duration seed learning_rate kl_coefficient group_size tag owner project note"
    every += " created started ended metric.entropy"
    page = viewer.get("/runs", params={"columns": every.replace(" ", ","), "sort": "-reward"}).text
    part = viewer.get("/runs", params={"sort": "-reward"}, headers={"HX-Request": "true", "HX-Request-Type": "partial"})
    assert part.text.lstrip().startswith('<div id="run-table"')
    for text in ("org/tiny", "0.001", "1,200", 'aria-sort="descending"', "entropy"):
        assert text in page, text
    assert "There is no column" not in page
    names = {"alpha", "beta", "gamma"}
    for field in set(every.split()) - {"progress", "tag", "note"} | {"name"}:
        for sort in (field, f"-{field}"):
            first = viewer.get("/api/v1/runs", params={"sort": sort, "limit": 2}).json()
            second = viewer.get("/api/v1/runs", params={"sort": sort, "limit": 2, "after": first["next"]}).json()
            assert {each["name"] for each in first["items"] + second["items"]} == names, sort
    assert listed(viewer, sort="-reward") == ["alpha", "beta", "gamma"]
    assert listed(viewer, sort="reward") == ["beta", "alpha", "gamma"]
    assert listed(viewer, sort="name") == ["alpha", "beta", "gamma"]


def test_unknown_columns_and_orders_open_with_a_message(viewer: TestClient, three: object) -> None:
    page = viewer.get("/runs", params={"columns": "reward,removed_metric", "sort": "-removed_metric"})
    assert page.status_code == 200
    assert "There is no column `removed_metric`. The list is shown without it." in page.text
    assert "`removed_metric` is no field to sort by." in page.text
    assert page.text.count('aria-label="Select ') == 3
    assert viewer.get("/api/v1/runs", params={"sort": "removed"}).status_code == 422
    chosen = viewer.get("/runs", params={"show": ["reward", "seed"], "kind": "evaluation"}).text
    assert "columns=name%2Creward%2Cseed" in chosen
    assert '<th scope="col">kind</th>' not in chosen


def test_pinned_runs_come_first_on_every_page(author: TestClient, viewer: TestClient, three: tuple[Run, ...]) -> None:
    alpha = three[0]
    pinned = author.post("/runs/bulk", data={"run": [str(alpha.id)], "choice": "pin"})
    assert pinned.status_code == 303
    assert listed(viewer) == ["alpha", "gamma", "beta"]
    assert listed(viewer, where="pinned") == ["alpha"]
    address = re.search(r'href="(/runs\?limit=2[^"]*after=[^"]*)"', viewer.get("/runs?limit=2").text)
    assert address
    assert listed(viewer, **dict(pair.split("=") for pair in address[1].split("?")[1].split("&amp;"))) == ["beta"]
    assert [each["name"] for each in viewer.get("/api/v1/runs").json()["items"]] == ["gamma", "beta", "alpha"]
    unpinned = author.patch(f"/api/v1/runs/{alpha.id}", json={"is_pinned": False})
    assert unpinned.json()["is_pinned"] is False


def test_a_view_keeps_filter_order_and_columns(
    author: TestClient, viewer: TestClient, session: Session, three: object
) -> None:
    hostile = "<script>alert(1)</script>"
    form = {
        "name": hostile,
        "filter": "status = failed",
        "sort": "-duration",
        "columns": "status,seed",
        "listing": "runs",
    }
    saved = author.post("/views", data=form)
    address = saved.headers["location"]
    assert address == "/runs?where=status+%3D+failed&sort=-duration&columns=status%2Cseed"
    page = author.get(address).text
    assert hostile not in page
    assert "&lt;script&gt;" in page
    assert "&lt;script&gt;" not in viewer.get("/runs").text
    view = session.query(SavedView).one()
    assert view.listing is Listing.RUNS
    own = f"/views/{view.id}"
    assert viewer.post(own, data={"name": "mine"}).status_code == 404
    assert viewer.post(f"/views/{uuid.uuid4()}/delete").status_code == 404
    assert author.post("/views", data=form | {"filter": "nonsense"}).status_code == 422
    assert author.post(own, data={"name": "failed ones", "is_shared": "true"}).status_code == 303
    assert "failed ones" in viewer.get("/runs").text
    deleted = author.post(f"{own}/delete", data={"query": "kind=check"}).headers["location"]
    assert deleted == f"/runs?kind=check&deleted_view={view.id}"
    shown = author.get(deleted).text
    assert 'value="failed ones"' not in shown
    assert f"{own}/restore" in shown
    assert author.get("/api/v1/views?listing=runs").json()["items"] == []
    assert author.post(f"{own}/restore").headers["location"] == address
    assert author.get("/api/v1/views?listing=runs").json()["items"][0]["name"] == "failed ones"
    assert author.get("/api/v1/views?listing=rollouts").json()["items"] == []
