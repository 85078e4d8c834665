"""The environment fails, is not deterministic, or the person leaves while it answers: nothing is lost."""

from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient

from backend.core.session import transaction
from backend.domain.environments.play import PlayPhase
from backend.domain.vocabulary import Role, RolloutStatus, RunStatus, StopReason
from backend.runs.service import resume_run
from backend.runs.tables import Run
from tests.environments.play.conftest import begin, reply, view, work
from tests.factories import Member

PAGE = "/environments/counter/play"


@pytest.mark.slow
def test_an_environment_that_raises_is_reported_and_the_reply_is_kept(ada: TestClient, publish: Callable[..., None]):
    publish(in_step="if action.amount == 2: raise ValueError('the board is on fire')")
    run_id = begin(ada)
    reply(ada, run_id, "1")
    reply(ada, run_id, "2")
    seen = view(run_id)
    assert seen.state.phase is PlayPhase.STUCK
    assert "the board is on fire" in seen.state.message
    assert seen.pending == "2"
    text = ada.get(f"{PAGE}/{run_id}").text
    assert "the board is on fire" in text
    assert "Your reply is kept" in text
    assert reply(ada, run_id, "1") == 303
    assert view(run_id).observation["total"] == 2


def test_the_same_can_be_asked_once_more(ada: TestClient, publish: Callable[..., None]):
    publish(in_reset="raise ValueError('not yet')")
    run_id = begin(ada)
    assert view(run_id).state.phase is PlayPhase.STUCK
    assert ada.post(f"{PAGE}/{run_id}/retry").status_code == 303
    assert view(run_id).state.phase is PlayPhase.OPENING
    assert work() == 1
    assert "not yet" in view(run_id).state.message


def test_trying_again_needs_a_failure(ada: TestClient, counter: None):
    run_id = begin(ada)
    assert ada.post(f"{PAGE}/{run_id}/retry").status_code == 409


def test_an_environment_that_is_not_deterministic_is_found_out(ada: TestClient, publish: Callable[..., None]):
    publish(in_step="import time\nobservation.text = str(time.perf_counter_ns())")
    run_id = begin(ada)
    reply(ada, run_id, "1")
    reply(ada, run_id, "1")
    assert view(run_id).state.divergence == "Turn 1 was answered differently than before (observation)."
    assert "not deterministic" in ada.get(f"{PAGE}/{run_id}").text


def test_a_person_may_leave(ada: TestClient, counter: None):
    run_id = begin(ada)
    reply(ada, run_id, "1")
    assert ada.post(f"{PAGE}/{run_id}/leave").status_code == 303
    seen = view(run_id)
    assert (seen.rollout.status, seen.rollout.stop_reason) == (RolloutStatus.CANCELLED, StopReason.ABANDONED)
    assert (seen.run.status, seen.rollout.reward) == (RunStatus.STOPPED, None)
    assert "You left this episode" in ada.get(f"{PAGE}/{run_id}").text
    assert ada.post(f"{PAGE}/{run_id}/leave").status_code == 409


def test_a_person_may_come_back_to_what_they_left(ada: TestClient, counter: None):
    run_id = begin(ada)
    reply(ada, run_id, "1")
    ada.post(f"{PAGE}/{run_id}/leave")
    with transaction() as session:
        run = session.get_one(Run, run_id)
        assert run.created_by
        resume_run(session, Member(run.created_by, Role.AUTHOR), run)
    work()
    seen = view(run_id)
    assert (seen.state.phase, seen.observation["total"]) == (PlayPhase.YOURS, 1)
    assert seen.rollout.status is RolloutStatus.PLAYING
    reply(ada, run_id, "2")
    assert view(run_id).rollout.reward == 3.5


@pytest.mark.slow
def test_an_answer_that_comes_after_the_person_left_changes_nothing(ada: TestClient, counter: None):
    run_id = begin(ada)
    ada.post(f"{PAGE}/{run_id}/reply", data={"reply": "3"})
    ada.post(f"{PAGE}/{run_id}/leave")
    work()
    assert view(run_id).rollout.status is RolloutStatus.CANCELLED
