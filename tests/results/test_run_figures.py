"""All figures of a run, on its page and as JSON: success, levels, groups, failures, cost and coverage."""

import re
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.domain.results.pass_at_k import pass_at_k, pass_hat_k
from backend.domain.vocabulary import ErrorKind, Phase, RunKind
from backend.runs.tables import Run
from tests.factories import make_environment_version, make_group, make_rollout, make_rollouts, make_run, random_rows
from tests.statements import statements_of

GROUP = 4


def figures(client: TestClient, run: Run, **query: object) -> dict:
    return client.get(f"/api/v1/runs/{run.id}/figures", params=query).json()


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def evaluated(session: Session, rows: list[list[float] | None], group_size: int = GROUP, **fields: object) -> Run:
    plan = {"split": "heldout", "tasks": len(rows) // group_size, "first_task": 0, "group_size": group_size}
    run = make_run(session, configuration=plan)
    make_rollouts(session, run, rows, group_size=group_size, **fields)
    return run


@pytest.mark.slow
def test_pass_at_k_is_what_the_rows_say(session: Session, viewer: TestClient) -> None:
    rows = random_rows(80, seed=3)
    found = figures(viewer, evaluated(session, rows))
    wins = np.array([row[0] >= 1 for row in rows if row]).reshape(20, GROUP).sum(axis=1)
    assert (found["success"]["column"], found["success"]["at_least"]) == ("win", 1.0)
    for at in found["passes"]:
        k = at["k"]
        assert at["pass_at_k"]["mean"] == pytest.approx(np.mean([pass_at_k(GROUP, c, k) for c in wins.tolist()]))
        assert at["pass_hat_k"]["mean"] == pytest.approx(np.mean([pass_hat_k(GROUP, c, k) for c in wins.tolist()]))
    assert [at["k"] for at in found["passes"]] == [1, 2, 3, 4]


def test_the_rule_can_be_chosen(session: Session, viewer: TestClient) -> None:
    run = evaluated(session, [[0.5, 1, 0], [1, 1, 0], [0, 1, 0], [0, 0.5, 0]])
    assert figures(viewer, run)["success"]["rate"]["mean"] == 0.25
    assert figures(viewer, run, at_least=0.5)["success"]["rate"]["mean"] == 0.5
    assert figures(viewer, run, success="format")["success"]["rate"]["mean"] == 0.75
    assert figures(viewer, run, success="reward", at_least=0.2)["success"]["rate"]["mean"] == 0.75
    assert viewer.get(f"/api/v1/runs/{run.id}/figures?success=nothing").status_code == 422
    assert "format &gt;= 1" in viewer.get(f"/runs/{run.id}?success=format").text


def test_failed_rollouts_are_in_no_average_and_in_the_coverage(session: Session, viewer: TestClient) -> None:
    run = evaluated(session, [[1, 1, 0], None, [1, 1, 0], None, [0, 1, 0], [0, 1, 0], [0, 1, 0], [0, 1, 0]])
    found = figures(viewer, run)
    assert found["coverage"] == {"completed": 6, "total": 8}
    assert found["success"]["rate"]["mean"] == 0.5  # one task of two, whatever failed
    assert {at["k"]: at["tasks"] for at in found["passes"]} == {1: 2, 2: 2, 3: 1, 4: 1}
    assert "Averages cover 6 of 8 completed" in text_of(viewer.get(f"/runs/{run.id}").text)


def test_what_was_not_played_yet_is_missing_too(session: Session, viewer: TestClient) -> None:
    run = make_run(session, configuration={"tasks": 10, "group_size": 2})
    make_rollouts(session, run, [[1, 1, 0]] * 6, group_size=2)
    assert figures(viewer, run)["coverage"] == {"completed": 6, "total": 20}


def test_groups_are_mixed_all_good_or_all_bad(session: Session, viewer: TestClient) -> None:
    good, bad, mixed = [[1, 1, 0]] * 4, [[0, 1, 0]] * 4, [[0, 1, 0], [1, 1, 0]] * 2
    run = evaluated(session, [*good, *bad, *mixed, *bad])
    assert figures(viewer, run)["groups"] == {"groups": 4, "mixed": 1, "all_good": 1, "all_bad": 2}
    alone = evaluated(session, [[1, 1, 0]] * 4, group_size=1)
    assert figures(viewer, alone)["groups"] is None


def test_every_level_shows_reward_success_and_coverage(session: Session, viewer: TestClient) -> None:
    run = evaluated(session, [[1, 1, 0], [0, 1, 0], None, [1, 1, 0]], group_size=1)
    levels = figures(viewer, run)["levels"]
    assert [(at["level"], at["coverage"]["completed"], at["coverage"]["total"]) for at in levels] == [
        (0, 1, 1),
        (1, 1, 1),
        (2, 0, 1),
        (3, 1, 1),
    ]
    assert [at["success"] and at["success"]["mean"] for at in levels] == [1, 0, None, 1]


def test_failures_are_reported_by_message_with_a_way_to_them(session: Session, viewer: TestClient) -> None:
    run = make_run(session)
    for index, (kind, message) in enumerate(
        [
            (ErrorKind.POLICY, "the endpoint answered 500"),
            (ErrorKind.POLICY, "timed out"),
            (ErrorKind.POLICY, "timed out"),
        ]
    ):
        make_rollout(session, run, make_group(session, run, index=index), None, error_kind=kind, error_message=message)
    make_rollout(session, run, make_group(session, run, index=9), [1, 1, 0])
    assert [(each["kind"], each["message"], each["count"]) for each in figures(viewer, run)["failures"]] == [
        ("policy", "timed out", 2),
        ("policy", "the endpoint answered 500", 1),
    ]
    html = viewer.get(f"/runs/{run.id}").text
    [href] = set(re.findall(r'href="([^"]*error_kind[^"]*)"', html))
    assert unquote(href.replace("+", " ")).endswith("where=status = failed and error_kind = policy")


def test_cost_states_for_how_many_it_is_known(session: Session, viewer: TestClient) -> None:
    run = make_run(session)
    for index, cost in enumerate([0.5, None, 1.5]):
        make_rollout(session, run, make_group(session, run, index=index), [1, 1, 0], cost=cost)
    spent = figures(viewer, run)["spent"]
    assert (spent["cost"], spent["priced"]) == (2.0, 2)
    page = text_of(viewer.get(f"/runs/{run.id}").text)
    assert "$2.00" in page
    assert "price known for 2 of 3" in page


@pytest.mark.slow
def test_every_link_behind_a_figure_is_a_filter_that_is_understood(session: Session, viewer: TestClient) -> None:
    rows = random_rows(40, seed=5, failing=0.1)
    run = evaluated(session, rows)
    html = viewer.get(f"/runs/{run.id}").text
    links = {link.replace("&amp;", "&") for link in re.findall(rf'href="(/runs/{run.id}/rollouts\?where=[^"]+)"', html)}
    assert len(links) > 10
    for link in links:
        answer = viewer.get(link)
        assert answer.status_code == 200, parse_qs(urlsplit(link).query)


def test_a_bar_leads_to_as_many_rollouts_as_it_represents(session: Session, viewer: TestClient) -> None:
    rows = [[index % 3 / 3, 1.0, 0.0] for index in range(12)]
    run = evaluated(session, rows, group_size=1)
    bars = next(column for column in figures(viewer, run)["columns"] if column["name"] == "win")["distribution"]
    for bar in bars:
        where = f"win = {bar['low']:.9g}"
        found = viewer.get("/api/v1/rollouts", params={"run_id": str(run.id), "where": where}).json()["items"]
        assert len(found) == bar["count"] == 4


def test_a_training_run_shows_one_heldout_evaluation(session: Session, viewer: TestClient) -> None:
    run = make_run(session, kind=RunKind.TRAINING)
    make_rollouts(session, run, [[0, 1, 0]] * 4, phase=Phase.HELDOUT, step=0)
    make_rollouts(session, run, [[1, 1, 0]] * 4, phase=Phase.HELDOUT, step=40)
    assert figures(viewer, run)["success"]["rate"]["mean"] == 1
    assert figures(viewer, run, phase="heldout", step=0)["success"]["rate"]["mean"] == 0


def test_the_hardest_and_the_easiest_tasks_stand_first(session: Session, viewer: TestClient) -> None:
    run = evaluated(session, [[index / 10, 1, 0] for index in range(10)], group_size=1)
    page = text_of(viewer.get(f"/runs/{run.id}").text)
    assert page.index("heldout/0") < page.index("heldout/1")
    assert "Easiest tasks" in page
    sorted_down = viewer.get(f"/runs/{run.id}/groups?sort=-mean&limit=4").text
    assert re.findall(r"heldout/(\d)", sorted_down) == ["9", "8", "7", "6"]
    [cursor] = re.findall(r'after=([^"&]+)"', sorted_down)
    following = viewer.get(
        f"/runs/{run.id}/groups", params={"sort": "-mean", "limit": 4, "after": unquote(cursor)}
    ).text
    assert re.findall(r"heldout/(\d)", following) == ["5", "4", "3", "2"]
    assert viewer.get(f"/runs/{run.id}/groups?sort=nothing").status_code == 422


def test_the_normalized_score_needs_a_floor_and_a_gold_reward(session: Session, viewer: TestClient) -> None:
    version = make_environment_version(session, checks={"floor_maximum": 0.2, "gold_minimum": 0.9})
    known, unknown = make_run(session, version), make_run(session)
    for run in (known, unknown):
        make_rollouts(session, run, [[1, 1, 0], [0, 1, 0], [0, 1, 0], [1, 1, 0]], group_size=1)
    found = figures(viewer, known)
    reward = found["columns"][0]
    assert found["scale"] == {"floor": 0.2, "gold": 0.9}
    assert found["normalized"]["mean"] == pytest.approx((reward["mean"] - 0.2) / 0.7)
    assert (reward["low"] < 0.2, found["normalized"]["low"]) == (True, 0.0)
    assert "normalized score" in viewer.get(f"/runs/{known.id}").text
    assert figures(viewer, unknown)["normalized"] is None
    assert "normalized score" not in viewer.get(f"/runs/{unknown.id}").text


@pytest.mark.slow
def test_figures_of_an_ended_run_are_read_once_until_it_has_other_rollouts(
    session: Session, viewer: TestClient
) -> None:
    run = evaluated(session, [[1, 1, 0], [0, 1, 0]], group_size=1)
    first = figures(viewer, run)
    assert viewer.get(f"/runs/{run.id}").status_code == 200
    with statements_of(session) as sent:
        assert figures(viewer, run) == first
        assert viewer.get(f"/runs/{run.id}").status_code == 200
    assert not [each for each in sent if "FROM rollouts r" in each]
    make_rollout(session, run, make_group(session, run, index=2), [1, 1, 0])  # as after a resume
    assert figures(viewer, run)["coverage"]["completed"] == 3
    assert figures(viewer, run, at_least=0.5)["success"]["rate"]["count"] == 3
