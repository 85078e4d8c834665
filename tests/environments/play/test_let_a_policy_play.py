"""A policy continues a person's episode, and the person continues after it."""

import uuid

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from backend.core.session import transaction
from backend.core.tables import Job
from backend.domain.environments.play import PlayPhase
from backend.domain.vocabulary import PolicyKind, Queue
from backend.policies.tables import Policy
from backend.runs.tables import Run
from tests import factories
from tests.environments.play.conftest import begin, reply, view, work

PAGE = "/environments/counter/play"


def a_script(script: str, constant: str | None = None) -> str:
    """The id of a policy that follows a script."""
    name = f"{script} {uuid.uuid4().hex[:6]}"
    with transaction() as session:
        policy = Policy(name=name, kind=PolicyKind.SCRIPTED, configuration={"script": script, "constant": constant})
        session.add(policy)
        session.flush()
        return str(policy.id)


def let_play(ada: TestClient, run_id: uuid.UUID, policy: str, **fields: object) -> int:
    status = ada.post(f"{PAGE}/{run_id}/policy", data={"policy": policy, **fields}).status_code
    work()
    return status


@pytest.mark.usefixtures("counter")
def test_one_move_of_a_script_and_the_rest_manually(ada: TestClient):
    run_id = begin(ada, split="train", index=0)
    assert let_play(ada, run_id, a_script("constant", "1"), moves=1) == 303
    seen = view(run_id)
    assert seen.state.phase is PlayPhase.YOURS
    assert [step["reply"] for step in seen.rollout.steps] == ["1"]
    reply(ada, run_id, "2")
    seen = view(run_id)
    assert (seen.rollout.reward, [bool(author) for author in seen.state.authors]) == (3.5, [True, False])
    assert "turn 1 by constant" in ada.get(f"{PAGE}/{run_id}").text


@pytest.mark.usefixtures("counter")
def test_a_script_of_the_environment_plays_to_the_end(ada: TestClient):
    run_id = begin(ada)
    reply(ada, run_id, "many")
    let_play(ada, run_id, a_script("gold"))
    seen = view(run_id)
    assert seen.state.phase is PlayPhase.OVER
    assert [step["reply"] for step in seen.rollout.steps] == ["many", "3"]


@pytest.mark.usefixtures("counter")
def test_what_a_policy_played_can_be_taken_back(ada: TestClient):
    run_id = begin(ada)
    let_play(ada, run_id, a_script("constant", "1"), moves=2)
    ada.post(f"{PAGE}/{run_id}/back")
    work()
    seen = view(run_id)
    assert [step["reply"] for step in seen.rollout.steps] == ["1"]
    assert len(seen.state.authors) == 1


@pytest.mark.usefixtures("counter")
def test_a_script_that_is_not_there_leaves_the_episode_as_it_was(ada: TestClient):
    run_id = begin(ada)
    reply(ada, run_id, "1")
    let_play(ada, run_id, a_script("genius"))
    seen = view(run_id)
    assert seen.state.phase is PlayPhase.STUCK
    assert "no script 'genius'" in seen.state.message
    reply(ada, run_id, "2")
    assert view(run_id).state.phase is PlayPhase.OVER


@pytest.mark.usefixtures("counter")
def test_taking_over_throws_the_answer_of_the_policy_away(ada: TestClient):
    run_id = begin(ada)
    ada.post(f"{PAGE}/{run_id}/policy", data={"policy": a_script("constant", "1")})
    assert "Take over" in ada.get(f"{PAGE}/{run_id}").text
    assert ada.post(f"{PAGE}/{run_id}/over").status_code == 303
    work()
    seen = view(run_id)
    assert (seen.state.phase, seen.rollout.steps) == (PlayPhase.YOURS, [])
    assert ada.post(f"{PAGE}/{run_id}/over").status_code == 409


@pytest.mark.usefixtures("counter")
def test_a_checkpoint_is_asked_on_the_queue_of_models_and_told_when_it_cannot_play(ada: TestClient):
    run_id = begin(ada)
    with transaction() as session:
        policy = Policy(name="grid", kind=PolicyKind.LOCAL)
        session.add(policy)
        session.flush()
        checkpoint = factories.make_checkpoint(session, policy)
        key = f"{policy.id}:{checkpoint.id}"
    assert "grid" in ada.get(f"{PAGE}/{run_id}").text
    assert ada.post(f"{PAGE}/{run_id}/policy", data={"policy": key}).status_code == 303
    with transaction() as session:
        newest = session.scalars(select(Job).order_by(Job.id.desc()).limit(1)).one()
        assert (newest.queue, session.get_one(Run, run_id).progress["mover"]["checkpoint_id"]) == (
            Queue.GPU,
            str(checkpoint.id),
        )
    assert ada.post(f"{PAGE}/{run_id}/over").status_code == 303


@pytest.mark.usefixtures("counter")
@pytest.mark.parametrize("policy", ["nonsense", "01a1fcae-0000-7000-8000-000000000000"])
def test_a_policy_that_is_not_there_is_refused(ada: TestClient, policy: str):
    run_id = begin(ada)
    assert let_play(ada, run_id, policy) == 422
