"""The judged episodes of an environment: all see them, verdicts make them, authors move bounds and take them back."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.rollouts.tables import Rollout
from tests import factories


@pytest.fixture
def rollout(session: Session) -> Rollout:
    version = factories.make_environment_version(
        session, factories.make_environment(session, "guess"), checks={"floor_maximum": 0.3}
    )
    return factories.make_rollouts(session, factories.make_run(session, version), [[1.0, 1.0, 0.0]])[0]


def test_a_hack_appears_and_an_author_moves_its_bound(
    author: TestClient, reviewer: TestClient, rollout: Rollout
) -> None:
    reviewer.post(f"/rollouts/{rollout.id}/verdicts", data={"verdict": "hack"})
    (fixture,) = reviewer.get("/api/v1/environments/guess/judged-fixtures").json()["items"]
    assert fixture["highest"] == 0.3
    assert f"/fixtures/{fixture['id']}/bound" in author.get("/environments/guess/judged").text
    answer = author.post(f"/fixtures/{fixture['id']}/bound", data={"bound": "0.1"})
    assert answer.headers["location"] == "/environments/guess/judged"
    text = author.get("/environments/guess/judged").text
    assert 'value="0.1"' in text
    assert "the bound became 0.1" in text


def test_a_reviewer_keeps_by_the_default_and_changes_no_fixture(reviewer: TestClient, rollout: Rollout) -> None:
    reviewer.post(f"/rollouts/{rollout.id}/verdicts", data={"verdict": "hack"})
    (fixture,) = reviewer.get("/api/v1/environments/guess/judged-fixtures").json()["items"]
    assert f"/fixtures/{fixture['id']}" not in reviewer.get("/environments/guess/judged").text
    address = f"/fixtures/{fixture['id']}"
    assert reviewer.post(f"{address}/bound", data={"bound": "0.9"}).status_code == 403
    assert reviewer.post(f"{address}/withdraw").status_code == 403
    assert reviewer.patch(f"/api/v1{address}", json={"bound": 0.9}).status_code == 403
    assert reviewer.delete(f"/api/v1{address}").status_code == 403
    assert reviewer.post(f"/rollouts/{rollout.id}/fixture", data={"bound": "0.9"}).status_code == 403
    assert reviewer.post(f"/api/v1/rollouts/{rollout.id}/fixture", json={"bound": 0.9}).status_code == 403
    kept = reviewer.post(f"/api/v1/rollouts/{rollout.id}/fixture", json={}).json()
    assert (kept["id"], kept["highest"]) == (fixture["id"], 0.3)


def test_an_honest_episode_is_kept_by_one_button_and_taken_back(
    author: TestClient, reviewer: TestClient, rollout: Rollout
) -> None:
    assert reviewer.post(f"/rollouts/{rollout.id}/fixture").status_code == 409
    reviewer.post(f"/rollouts/{rollout.id}/verdicts", data={"verdict": "honest"})
    assert reviewer.post(f"/rollouts/{rollout.id}/fixture").status_code == 303
    (fixture,) = reviewer.get("/api/v1/environments/guess/judged-fixtures").json()["items"]
    assert fixture["lowest"] == pytest.approx(1.2, abs=1e-3)
    author.post(f"/fixtures/{fixture['id']}/withdraw", data={"because": "the task was unclear"})
    assert "the task was unclear" in reviewer.get("/environments/guess/judged").text


def test_viewers_see_and_change_nothing(viewer: TestClient, reviewer: TestClient, rollout: Rollout) -> None:
    reviewer.post(f"/rollouts/{rollout.id}/verdicts", data={"verdict": "hack"})
    (fixture,) = viewer.get("/api/v1/environments/guess/judged-fixtures").json()["items"]
    assert viewer.get("/environments/guess/judged").status_code == 200
    assert viewer.post(f"/rollouts/{rollout.id}/fixture").status_code == 403
    assert viewer.post(f"/fixtures/{fixture['id']}/bound", data={"bound": "9"}).status_code == 403
    assert viewer.delete(f"/api/v1/fixtures/{fixture['id']}").status_code == 403
    assert viewer.get("/environments/nothing/judged").status_code == 404


def test_a_bound_is_a_number(reviewer: TestClient, rollout: Rollout) -> None:
    reviewer.post(f"/rollouts/{rollout.id}/verdicts", data={"verdict": "hack"})
    assert reviewer.post(f"/rollouts/{rollout.id}/fixture", data={"bound": "low"}).status_code == 422
