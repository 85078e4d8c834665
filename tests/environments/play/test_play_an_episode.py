"""From the choice of a task to the stored rollout."""

import pytest
from fastapi.testclient import TestClient

from backend.domain.environments.play import PlayPhase
from backend.domain.vocabulary import Phase, RolloutStatus, RunStatus, StopReason
from tests.environments.play.conftest import begin, reply, view, work

pytestmark = pytest.mark.usefixtures("counter")
PAGE = "/environments/counter/play"


def test_it_opens_on_the_task_that_was_chosen(ada: TestClient):
    run_id = begin(ada, split="heldout", index=7)
    seen = view(run_id)
    assert seen.state.phase is PlayPhase.YOURS
    assert (seen.task.split, seen.task.index, seen.task.seed) == ("heldout", 7, 10_000_007)
    assert seen.observation["seed"] == 10_000_007
    assert "start 0" in seen.text
    assert seen.rollout.status is RolloutStatus.PLAYING
    assert seen.run.status is RunStatus.RUNNING


def test_each_reply_is_answered_with_its_columns(ada: TestClient):
    run_id = begin(ada, split="train", index=0)
    assert reply(ada, run_id, "1") == 303
    seen = view(run_id)
    assert seen.observation["total"] == 1
    assert seen.columns == {"gain": 1.0, "tidy": 0.5}
    assert seen.reward == 1.25
    text = ada.get(f"{PAGE}/{run_id}").text
    assert "turn 2 of at most" in text
    assert "+1.250" in text


def test_a_finished_episode_is_a_completed_rollout_of_the_policy_human(ada: TestClient):
    run_id = begin(ada, split="train", index=0)
    reply(ada, run_id, "1")
    reply(ada, run_id, "2")
    seen = view(run_id)
    assert seen.state.phase is PlayPhase.OVER
    assert (seen.rollout.status, seen.rollout.stop_reason) == (RolloutStatus.COMPLETED, StopReason.DONE)
    assert seen.rollout.phase is Phase.PLAY
    assert (seen.rollout.columns, seen.rollout.reward) == ([3.0, 1.0], 3.5)
    assert [step["reply"] for step in seen.rollout.steps] == ["1", "2"]
    assert (seen.run.status, seen.run.summary["reward"]) == (RunStatus.COMPLETED, 3.5)
    text = ada.get(f"{PAGE}/{run_id}").text
    assert f"/rollouts/{seen.rollout.id}" in text
    assert "The episode has ended" in text


def test_a_reply_that_cannot_be_read_costs_a_turn_and_states_why(ada: TestClient):
    run_id = begin(ada)
    reply(ada, run_id, "many")
    seen = view(run_id)
    assert seen.state.done == 1
    assert seen.state.phase is PlayPhase.YOURS
    assert "not an integer" in seen.text
    assert seen.observation["total"] == 0


def test_the_form_of_the_action_writes_the_reply_of_a_model(ada: TestClient):
    run_id = begin(ada)
    assert [field.name for field in view(run_id).fields] == ["amount"]
    assert ada.post(f"{PAGE}/{run_id}/reply", data={"field.amount": "2"}).status_code == 303
    work()
    assert view(run_id).rollout.steps[0]["reply"] == "2"
    assert ada.post(f"{PAGE}/{run_id}/reply", data={"field.amount": "x"}).status_code == 422


def test_htmx_gets_the_board_at_once(ada: TestClient):
    run_id = begin(ada)
    answer = ada.post(f"{PAGE}/{run_id}/reply", data={"reply": "1"}, headers={"HX-Request": "true"})
    assert answer.status_code == 200
    assert 'hx-target="#play-board"' in answer.text
    assert "The environment is answering" in answer.text


def test_an_open_episode_is_listed_and_can_be_played_on(ada: TestClient):
    run_id = begin(ada)
    assert f"{PAGE}/{run_id}" in ada.get(PAGE).text


@pytest.mark.slow
def test_nothing_is_left_for_a_second_worker(ada: TestClient):
    begin(ada)
    assert work() == 0
