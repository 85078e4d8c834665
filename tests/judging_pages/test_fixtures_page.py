"""The judged episodes of an environment: seen by all, kept and taken back by reviewers."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.db.models import Rollout
from tests import factories


@pytest.fixture
def rollout(session: Session) -> Rollout:
    version = factories.make_environment_version(
        session, factories.make_environment(session, "guess"), checks={"floor_maximum": 0.3}
    )
    return factories.make_rollouts(session, factories.make_run(session, version), [[1.0, 1.0, 0.0]])[0]


def test_a_hack_appears_and_its_bound_can_be_moved(reviewer: TestClient, rollout: Rollout) -> None:
    reviewer.post(f"/rollouts/{rollout.id}/verdicts", data={"verdict": "hack"})
    (fixture,) = reviewer.get("/api/v1/environments/guess/judged-fixtures").json()["items"]
    assert fixture["highest"] == 0.3
    answer = reviewer.post(f"/fixtures/{fixture['id']}/bound", data={"bound": "0.1"})
    assert answer.headers["location"] == "/environments/guess/judged"
    text = reviewer.get("/environments/guess/judged").text
    assert 'value="0.1"' in text
    assert "the bound became 0.1" in text


def test_an_honest_episode_is_kept_by_one_button_and_taken_back(reviewer: TestClient, rollout: Rollout) -> None:
    assert reviewer.post(f"/rollouts/{rollout.id}/fixture").status_code == 409
    reviewer.post(f"/rollouts/{rollout.id}/verdicts", data={"verdict": "honest"})
    assert reviewer.post(f"/rollouts/{rollout.id}/fixture").status_code == 303
    (fixture,) = reviewer.get("/api/v1/environments/guess/judged-fixtures").json()["items"]
    assert fixture["lowest"] == pytest.approx(1.2, abs=1e-3)
    reviewer.post(f"/fixtures/{fixture['id']}/withdraw", data={"because": "the task was unclear"})
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
