"""The JSON API of re-scores and replays, and what it refuses."""

import uuid
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.domain.vocabulary import RunKind
from backend.runs.tables import Run
from tests.factories import make_environment_version, make_rollouts, make_run
from tests.rollouts.regrading.test_pages import _rollouts, again, reader, source

__all__ = ["source"]


def test_weights_are_previewed_and_stored_alike(author: TestClient, source: Run) -> None:
    body = {"run_id": str(source.id), "weights": {"win": 2.0}}
    found = author.post("/api/v1/rescores/preview", json=body).json()
    assert [(each["name"], each["weight"]) for each in found["columns"]] == [
        ("win", 2.0),
        ("format", 0.2),
        ("invalid_move", -0.1),
    ]
    assert found["preview"]["rollouts"] == 12
    started = author.post("/api/v1/rescores", json={"run_ids": [str(source.id)], "weights": {"win": 2.0}})
    assert started.status_code == 201
    (run,) = started.json()["runs"]
    assert (run["kind"], run["status"], run["weights"]) == ("rescore", "queued", [2.0, 0.2, -0.1])
    batch = author.get(f"/api/v1/rescores/{started.json()['batch']}").json()
    assert [each["id"] for each in batch["runs"]] == [run["id"]]


@pytest.mark.parametrize("path", ["/api/v1/rescores/preview", "/api/v1/rescores"])
def test_a_judge_that_read_thoughts_is_no_part_of_a_reward(
    author: TestClient, session: Session, source: Run, path: str
) -> None:
    judge = reader(session, source)
    whose = {"run_id": str(source.id)} if path.endswith("preview") else {"run_ids": [str(source.id)]}
    refused = author.post(path, json={**whose, "weights": {"judge.mind_reader": 0.5}})
    assert (refused.status_code, list(refused.json()["fields"])) == (422, ["weights"])
    assert "was shown the policy's reasoning" in refused.json()["detail"]
    assert author.post(path, json={**whose, "weights": {"win": 0.5}}).is_success
    judge.settings = {"kind": "judge", "shows_reasoning": False}
    assert author.post(path, json={**whose, "weights": {"judge.mind_reader": 0.5}}).is_success


def test_the_same_weights_change_nothing(author: TestClient, source: Run) -> None:
    body = {"run_id": str(source.id), "weights": {}}
    found = author.post("/api/v1/rescores/preview", json=body).json()["preview"]
    assert (found["difference"]["mean"], found["turned_pairs"]) == (0.0, 0.0)
    assert found["rank_correlation"] == pytest.approx(1.0)
    assert found["spread_before"] == found["spread_after"]


def test_the_reverse_order_turns_every_pair(author: TestClient, session: Session) -> None:
    run = make_run(session)
    make_rollouts(session, run, [[1.0, 0.0, 0.0], [0.5, 0.0, 0.0], [0.0, 0.0, 0.0]], group_size=3)
    body = {"run_id": str(run.id), "weights": {"win": -1.0}}
    found = author.post("/api/v1/rescores/preview", json=body).json()["preview"]
    assert (found["rank_correlation"], found["turned_pairs"]) == (-1.0, 1.0)
    assert found["best"][0]["place_before"] == 3


def test_a_replay_shows_what_diverged(viewer: TestClient, session: Session, source: Run) -> None:
    run = again(session, source)
    found = viewer.get(f"/api/v1/runs/{run.id}/before-after").json()
    assert (found["rollouts"], found["diverged"], found["diverging_steps"]) == (12, 1, {"1": 1})
    assert found["source_run_id"] == str(source.id)
    pair = viewer.get(f"/api/v1/rollouts/{_rollouts(session, run)[0].id}/before-after").json()
    assert pair["differences"][0]["parts"] == ["observation", "rewards"]
    assert pair["columns"][0]["name"] == "reward"


def test_a_part_is_named_by_an_expression(author: TestClient, session: Session, source: Run) -> None:
    whole = author.post("/api/v1/rescores/preview", json={"run_id": str(source.id), "weights": {}}).json()
    part = {"run_id": str(source.id), "weights": {}, "where": "win = 0"}
    found = author.post("/api/v1/rescores/preview", json=part).json()
    assert found["preview"]["rollouts"] < whole["preview"]["rollouts"]
    wrong = author.post("/api/v1/rescores/preview", json={**part, "where": "win === drop table"})
    assert wrong.status_code == 422


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"weights": {"win": 1.0}}, 422),
        ({"weights": {"win": 1.0}, "version_id": str(uuid.uuid4()), "run_ids": ["self"]}, 422),
        ({"weights": {"win": "1e999"}, "run_ids": ["self"]}, 422),
        ({"weights": {"win": 1.0}, "run_ids": [str(uuid.uuid4())]}, 404),
        ({"version_id": str(uuid.uuid4()), "run_ids": ["self"]}, 422),
        ({"weights": {"win": 1.0}, "run_ids": ["self"], "where": "win = 17"}, 422),
        ({"weights": {"win": 1.0}, "run_ids": ["self"], "rollout_ids": [str(uuid.uuid4())]}, 422),
    ],
)
def test_what_makes_no_sense_is_refused(author: TestClient, source: Run, body: dict[str, Any], status: int) -> None:
    own = [str(source.id) if each == "self" else each for each in body.get("run_ids", [])]
    sent = {**body, **({"run_ids": own} if "run_ids" in body else {})}
    assert author.post("/api/v1/rescores", json=sent).status_code == status


def test_rollouts_of_another_run_are_not_taken(author: TestClient, session: Session, source: Run) -> None:
    """A forged id names a rollout that does not belong to the run."""
    other = make_run(session, make_environment_version(session))
    foreign = str(_rollouts(session, source)[0].id)
    body = {"run_ids": [str(other.id)], "weights": {}, "rollout_ids": [foreign]}
    assert author.post("/api/v1/rescores", json=body).status_code == 422


def test_hand_play_is_not_scored_again(author: TestClient, session: Session) -> None:
    run = make_run(session, kind=RunKind.PLAY)
    refused = author.post("/api/v1/rescores", json={"run_ids": [str(run.id)], "weights": {}})
    assert refused.status_code == 422
