"""A finished episode becomes a fixture of the draft, SFT data, or the start of another episode."""

import json
import uuid

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from backend.core.session import transaction
from backend.domain.environments.fixtures import read_fixture
from backend.domain.environments.play import PlayPhase
from backend.domain.vocabulary import Role
from backend.environments.queries import get_draft, get_environment
from backend.rollouts.tables import Rollout
from tests.environments.play.conftest import begin, reply, view, work

pytestmark = pytest.mark.usefixtures("counter")
PAGE = "/environments/counter"


def played(ada: TestClient, **task: object) -> uuid.UUID:
    """The rollout of an episode that was played to its end: 1, nonsense, 2."""
    run_id = begin(ada, **task)
    for text in ("1", "much", "2"):
        reply(ada, run_id, text)
    return view(run_id).rollout.id


def draft_files() -> dict[str, str]:
    with transaction() as session:
        return get_draft(session, get_environment(session, "counter")).files


def test_a_fixture_holds_task_replies_and_columns(ada: TestClient):
    rollout = played(ada, split="heldout", index=7)
    answer = ada.post(f"{PAGE}/fixtures", data={"rollout_id": rollout, "name": "two_moves", "note": "Why not"})
    assert (answer.status_code, answer.headers["location"]) == (303, f"{PAGE}/edit?file=fixtures/two_moves.json")
    fixture = read_fixture("fixtures/two_moves.json", draft_files()["fixtures/two_moves.json"])
    assert (fixture.task.split, fixture.task.index, fixture.task.seed) == ("heldout", 7, None)
    assert fixture.replies == ["1", "much", "2"]
    assert fixture.columns == {"gain": 3.0, "tidy": 1.0}
    assert (fixture.note, fixture.kind) == ("Why not", "scored")


def test_a_seed_of_ones_own_is_written_down(ada: TestClient):
    rollout = played(ada, split="train", index=2, seed=99)
    ada.post(f"{PAGE}/fixtures", data={"rollout_id": rollout, "name": "seeded", "kind": "gold"})
    written = json.loads(draft_files()["fixtures/seeded.json"])
    assert (written["task"], written["kind"]) == ({"split": "train", "index": 2, "seed": 99}, "gold")


def test_a_name_that_is_taken_or_no_name_is_refused(ada: TestClient):
    rollout = played(ada)
    form = {"rollout_id": rollout, "name": "once"}
    assert ada.post(f"{PAGE}/fixtures", data=form).status_code == 303
    assert ada.post(f"{PAGE}/fixtures", data=form).status_code == 422
    assert ada.post(f"{PAGE}/fixtures", data=form | {"name": "../server/app"}).status_code == 422


def test_an_open_episode_cannot_be_kept(ada: TestClient):
    run_id = begin(ada)
    rollout = view(run_id).rollout.id
    assert ada.post(f"{PAGE}/fixtures", data={"rollout_id": rollout, "name": "early"}).status_code == 409
    assert ada.post(f"{PAGE}/demonstrations", data={"rollout_id": rollout, "is_wanted": "true"}).status_code == 409


def test_an_episode_is_marked_as_sft_data_and_unmarked(ada: TestClient):
    rollout = played(ada, split="train", index=1)
    for wanted in (True, False):
        ada.post(f"{PAGE}/demonstrations", data={"rollout_id": rollout, "is_wanted": str(wanted).lower()})
        with transaction() as session:
            assert session.scalars(select(Rollout.is_demonstration).where(Rollout.id == rollout)).one() is wanted


def test_a_held_out_task_never_becomes_sft_data(ada: TestClient):
    rollout = played(ada, split="heldout", index=1)
    answer = ada.post(f"{PAGE}/demonstrations", data={"rollout_id": rollout, "is_wanted": "true"})
    assert (answer.status_code, "held out" in answer.text) == (409, True)


def test_any_rollout_can_be_played_on_from_a_turn(ada: TestClient):
    rollout = played(ada, split="train", index=4)
    answer = ada.post(f"{PAGE}/play/from", data={"rollout_id": rollout, "turns": 2})
    work()
    seen = view(uuid.UUID(answer.headers["location"].rpartition("/")[2]))
    assert (seen.state.phase, seen.task.index) == (PlayPhase.YOURS, 4)
    assert [step["reply"] for step in seen.rollout.steps] == ["1", "much"]


def test_rollouts_of_other_environments_are_not_found(ada: TestClient):
    for path in ("fixtures", "play/from", "demonstrations"):
        form = {"rollout_id": uuid.uuid4(), "name": "x"}
        assert ada.post(f"{PAGE}/{path}", data=form).status_code == 404


def test_a_viewer_keeps_nothing(ada: TestClient, browser_of):
    rollout = played(ada)
    eve = browser_of("eve", Role.VIEWER)
    assert eve.post(f"{PAGE}/fixtures", data={"rollout_id": rollout, "name": "hers"}).status_code == 403
    assert eve.post(f"{PAGE}/demonstrations", data={"rollout_id": rollout}).status_code == 403
