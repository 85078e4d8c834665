"""The "try it" panel: the draft as it is saved, served by the env host."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select

from backend.core.session import transaction
from backend.domain.vocabulary import Role
from backend.environments.drafts import text_mark
from backend.environments.queries import get_draft, get_environment
from backend.environments.tables import DraftTrial
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from tests.environments.play.conftest import work

EDIT = "/environments/counter/edit"
TRY = "/environments/counter/try"
SERVER = "server/counter_environment.py"


def the_trial() -> DraftTrial:
    with transaction() as session:
        return session.scalars(select(DraftTrial).order_by(DraftTrial.id).limit(1)).one()


def answer_of(trial: DraftTrial) -> dict[str, object]:
    with transaction() as session:
        return session.get_one(DraftTrial, trial.id).answer


def replies(trial: DraftTrial) -> list[str]:
    return [str(step["reply"]) for step in answer_of(trial)["steps"]]  # type: ignore[index, attr-defined]


def act(browser: TestClient, path: str, **fields: object) -> int:
    status = browser.post(f"{TRY}{path}", data=fields).status_code
    work()
    return status


def save(browser: TestClient, old: str, new: str) -> None:
    """Change the server's code in the draft."""
    with transaction() as session:
        draft = get_draft(session, get_environment(session, "counter"))
        text, revision = draft.files[SERVER], draft.revision
    assert old in text
    form = {"path": SERVER, "text": text.replace(old, new), "mark": text_mark(text), "revision": revision}
    assert browser.post(EDIT, data=form).status_code == 303


@pytest.mark.usefixtures("counter")
def test_it_resets_acts_and_shows_the_columns(ada: TestClient):
    assert act(ada, "", split="heldout", index=3) == 303
    trial = the_trial()
    assert trial.task == {"split": "heldout", "index": 3, "level": 0, "seed": 10_000_003}
    act(ada, "/act", reply="1")
    act(ada, "/act", **{"field.amount": "2"})
    assert replies(trial) == ["1", "2"]
    assert (answer_of(trial)["reward"], answer_of(trial)["columns"]) == (
        3.5,
        [["gain", 3.0, 1.0], ["tidy", 1.0, 0.5]],
    )
    text = ada.get(EDIT).text
    assert "the episode has ended" in text
    assert "3.500" in text


@pytest.mark.usefixtures("counter")
def test_nothing_of_it_becomes_a_run_or_a_rollout(ada: TestClient):
    act(ada, "")
    act(ada, "/act", reply="3")
    with transaction() as session:
        counts = [session.scalar(select(func.count()).select_from(model)) for model in (Run, Rollout)]
    assert counts == [0, 0]


@pytest.mark.usefixtures("counter")
def test_the_draft_is_served_as_it_is_saved(ada: TestClient):
    act(ada, "", index=0, split="train")
    act(ada, "/act", reply="1")
    save(ada, '"gain": float(action.amount)', '"gain": 10.0 * action.amount')
    assert "The draft was saved since." in ada.get(EDIT).text
    assert act(ada, "/replay") == 303
    assert answer_of(the_trial())["columns"][0] == ["gain", 10.0, 1.0]  # type: ignore[index]
    assert "The draft was saved since." not in ada.get(EDIT).text


@pytest.mark.usefixtures("counter")
def test_code_that_does_not_start_states_why_and_keeps_the_replies(ada: TestClient):
    act(ada, "", index=0, split="train")
    act(ada, "/act", reply="1")
    save(ada, "self.total, self.steps, self.arguments = 0, 0, {}", "self.total = nonsense")
    act(ada, "/replay")
    assert "nonsense" in str(answer_of(the_trial())["error"])
    save(ada, "self.total = nonsense", "self.total, self.steps, self.arguments = 0, 0, {}")
    act(ada, "/replay")
    assert (answer_of(the_trial())["error"], replies(the_trial())) == ("", ["1"])


@pytest.mark.usefixtures("counter")
def test_a_draft_with_problems_is_reported_and_not_served(ada: TestClient):
    save(ada, "class CounterEnvironment", "clas CounterEnvironment")
    answer = ada.post(TRY, data={})
    assert (answer.status_code, f"{SERVER} line" in answer.text) == (422, True)
    assert work() == 0


@pytest.mark.usefixtures("counter")
def test_a_script_plays_on_and_a_reply_is_taken_back(ada: TestClient):
    act(ada, "")
    act(ada, "/act", reply="1")
    act(ada, "/script", script="gold")
    assert replies(the_trial()) == ["1", "3"]
    act(ada, "/back")
    assert replies(the_trial()) == ["1"]


@pytest.mark.usefixtures("counter")
def test_everyone_tries_for_themselves(ada: TestClient, browser_of):
    bob = browser_of("bob")
    act(ada, "")
    act(bob, "")
    act(ada, "/act", reply="1")
    with transaction() as session:
        found = session.scalars(select(DraftTrial.replies)).all()
    assert sorted(found, key=len) == [[], ["1"]]


@pytest.mark.usefixtures("counter")
def test_acting_before_a_reset_or_without_the_right_is_refused(ada: TestClient, browser_of):
    assert act(ada, "/act", reply="1") == 409
    assert act(browser_of("eve", Role.VIEWER), "") == 403


@pytest.mark.usefixtures("counter")
def test_only_the_newest_question_is_answered(ada: TestClient):
    act(ada, "")
    ada.post(f"{TRY}/act", data={"reply": "1"})
    ada.post(TRY, data={"index": 0, "split": "train"})
    work()
    assert (replies(the_trial()), the_trial().is_waiting) == ([], False)


@pytest.mark.usefixtures("counter")
def test_scripts_try_it_too(ada: TestClient):
    api = "/api/v1/environments/counter/try"
    assert ada.get(api).status_code == 409
    assert ada.post(api, json={"split": "train", "index": 0}).status_code == 201
    work()
    assert ada.post(f"{api}/act", json={"action": {"amount": 3}}).json()["is_waiting"] is True
    work()
    told = ada.get(api).json()
    assert (told["replies"], told["answer"]["reward"], told["is_waiting"]) == (["3"], 3.25, False)
    assert ada.post(f"{api}/act", json={}).status_code == 422
