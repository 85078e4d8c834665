"""The streams of a version's checks and of an episode: whole blocks, and an end when nothing will change."""

import pytest
from fastapi.testclient import TestClient

from tests.environments.play.conftest import begin, reply

pytestmark = pytest.mark.usefixtures("counter")
PAGE = "/environments/counter"


def test_the_stream_ends_with_the_episode(ada: TestClient):
    run_id = begin(ada)
    reply(ada, run_id, "3")
    text = ada.get(f"{PAGE}/play/{run_id}/events").text
    assert "event: play_board" in text
    assert "The episode has ended" in text
    assert "event: end" in text


def test_the_stream_of_a_version_without_checks_ends_at_once(ada: TestClient):
    answer = ada.get(f"{PAGE}/versions/1/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "event: certificate" in answer.text
    assert "Not checked yet" in answer.text
    assert "event: end" in answer.text
