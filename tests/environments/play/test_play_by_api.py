"""The same by JSON."""

import pytest
from fastapi.testclient import TestClient

from tests.environments.play.conftest import work

pytestmark = pytest.mark.usefixtures("counter")
PLAY = "/api/v1/environments/counter/play"


def test_a_script_plays_an_episode(ada: TestClient):
    started = ada.post(PLAY, json={"split": "train", "index": 3}).json()
    assert (started["phase"], started["index"], started["turns"]) == ("opening", 3, 0)
    url = f"{PLAY}/{started['run_id']}"
    work()
    seen = ada.get(url).json()
    assert seen["phase"] == "yours"
    assert seen["action_schema"]["properties"]["amount"]["type"] == "integer"
    answer = ada.post(f"{url}/reply", json={"action": {"amount": 1}, "revision": seen["revision"]})
    assert answer.json()["phase"] == "thinking"
    work()
    ada.post(f"{url}/reply", json={"reply": "2"})
    work()
    over = ada.get(url).json()
    assert (over["phase"], over["status"], over["reward"], over["turns"]) == ("over", "completed", 3.5, 2)
    assert over["columns"] == {"gain": 3.0, "tidy": 1.0}


def test_it_takes_back_leaves_and_begins_again(ada: TestClient):
    url = f"{PLAY}/{ada.post(PLAY, json={}).json()['run_id']}"
    work()
    ada.post(f"{url}/reply", json={"reply": "1"})
    work()
    assert ada.post(f"{url}/back").status_code == 200
    work()
    assert ada.get(url).json()["turns"] == 0
    assert ada.post(f"{url}/leave").json()["status"] == "cancelled"
    assert ada.post(f"{url}/again", json={"turns": 0}).status_code == 201


@pytest.mark.parametrize("body", [{}, {"reply": "1", "action": {"amount": 1}}, {"reply": 7}])
def test_it_refuses_what_is_neither_a_reply_nor_an_action(ada: TestClient, body: dict[str, object]):
    url = f"{PLAY}/{ada.post(PLAY, json={}).json()['run_id']}"
    work()
    assert ada.post(f"{url}/reply", json=body).status_code == 422


def test_what_is_not_there_is_404(ada: TestClient):
    assert ada.get(f"{PLAY}/00000000-0000-0000-0000-000000000000").status_code == 404
    assert ada.post("/api/v1/environments/nothing/play", json={}).status_code == 404
