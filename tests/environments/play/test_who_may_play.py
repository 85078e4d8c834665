"""Each person has separate episodes; two tabs and a form sent twice act once."""

from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient

from backend.domain.vocabulary import Role
from tests.environments.play.conftest import begin, reply, runs, view, work

pytestmark = pytest.mark.usefixtures("counter")
PAGE = "/environments/counter/play"


def test_others_may_watch_but_not_act(ada: TestClient, browser_of: Callable[..., TestClient]):
    run_id = begin(ada)
    bob = browser_of("bob")
    text = bob.get(f"{PAGE}/{run_id}").text
    assert "ada plays this episode; you may watch" in text
    for action in ("reply", "back", "retry", "leave"):
        assert bob.post(f"{PAGE}/{run_id}/{action}", data={"reply": "1"}).status_code == 403
    assert f"{PAGE}/{run_id}" not in bob.get(PAGE).text


def test_two_people_play_side_by_side(ada: TestClient, browser_of: Callable[..., TestClient]):
    bob = browser_of("bob")
    hers, his = begin(ada, split="train", index=1), begin(bob, split="train", index=1)
    reply(ada, hers, "1")
    reply(bob, his, "2")
    assert (view(hers).observation["total"], view(his).observation["total"]) == (1, 2)
    assert len(runs()) == 2


def test_a_viewer_watches(ada: TestClient, browser_of: Callable[..., TestClient]):
    run_id = begin(ada)
    viewer = browser_of("vera", Role.VIEWER)
    assert viewer.get(f"{PAGE}/{run_id}").status_code == 200
    assert viewer.get(PAGE).status_code == 403
    assert viewer.post(PAGE).status_code == 403
    assert viewer.post(f"{PAGE}/{run_id}/reply", data={"reply": "1"}).status_code == 403


def test_a_form_sent_twice_acts_once(ada: TestClient):
    run_id = begin(ada)
    seen = view(run_id).state.revision
    assert reply(ada, run_id, "1", revision=seen) == 303
    assert reply(ada, run_id, "1", revision=seen) == 409
    assert view(run_id).state.done == 1


@pytest.mark.slow
def test_a_reply_waits_for_the_answer_to_the_one_before(ada: TestClient):
    run_id = begin(ada)
    assert ada.post(f"{PAGE}/{run_id}/reply", data={"reply": "1"}).status_code == 303
    assert ada.post(f"{PAGE}/{run_id}/reply", data={"reply": "1"}).status_code == 409
    work()
    assert view(run_id).state.done == 1


@pytest.mark.slow
@pytest.mark.parametrize("text", ["x" * 20_001, "\x00"])
def test_it_refuses_a_reply_that_is_no_text_or_too_long(ada: TestClient, text: str):
    run_id = begin(ada)
    assert reply(ada, run_id, text) == 422
    assert view(run_id).state.done == 0


@pytest.mark.parametrize(
    "task", [{"index": 1000}, {"index": "x"}, {"level": 1}, {"seed": -1}, {"seed": 2**63}, {"version": 2}]
)
def test_it_refuses_a_task_that_is_not_there(ada: TestClient, task: dict[str, object]):
    assert ada.post(PAGE, data={"split": "train", **task}).status_code in {404, 422}
    assert runs() == []


def test_the_episode_of_another_environment_is_not_here(ada: TestClient):
    run_id = begin(ada)
    assert ada.get(f"/environments/other/play/{run_id}").status_code == 404
    assert ada.post(f"/environments/other/play/{run_id}/leave").status_code == 404
