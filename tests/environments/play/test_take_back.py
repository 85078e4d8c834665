"""Undo: the episode is replayed with one reply fewer. Play on from a turn: a new episode begun with the old replies."""

import uuid

import pytest
from fastapi.testclient import TestClient

from backend.domain.environments.play import PlayPhase
from backend.domain.vocabulary import RolloutStatus
from tests.environments.play.conftest import begin, reply, view, work

pytestmark = pytest.mark.usefixtures("counter")
PAGE = "/environments/counter/play"


def test_the_last_reply_is_taken_back(ada: TestClient):
    run_id = begin(ada)
    reply(ada, run_id, "1")
    assert ada.post(f"{PAGE}/{run_id}/back").status_code == 303
    work()
    seen = view(run_id)
    assert (seen.state.done, seen.observation["total"], seen.reward) == (0, 0, 0)
    assert "start 0" in seen.text
    assert not seen.state.divergence


def test_there_is_nothing_to_take_back_at_the_start(ada: TestClient):
    run_id = begin(ada)
    assert ada.post(f"{PAGE}/{run_id}/back").status_code == 409


def test_an_episode_that_is_over_is_not_changed(ada: TestClient):
    run_id = begin(ada)
    reply(ada, run_id, "3")
    assert ada.post(f"{PAGE}/{run_id}/back").status_code == 409
    assert reply(ada, run_id, "1") == 409
    assert view(run_id).rollout.status is RolloutStatus.COMPLETED


def test_another_try_begins_before_the_last_reply(ada: TestClient):
    run_id = begin(ada, split="train", index=5)
    reply(ada, run_id, "1")
    reply(ada, run_id, "2")
    answer = ada.post(f"{PAGE}/{run_id}/again", data={"turns": 1})
    assert work() == 1
    again = view(uuid.UUID(answer.headers["location"].rpartition("/")[2]))
    assert again.run.id != run_id
    assert (again.task.index, again.state.done, again.state.phase) == (5, 1, PlayPhase.YOURS)
    assert view(run_id).rollout.reward == 3.5
