"""A person takes one seat of a game, a policy the others: its turns are replayed, and its failures lose nothing."""

import uuid
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi.testclient import TestClient

from backend.core.session import transaction
from backend.domain.environments.manifest import read_manifest
from backend.domain.environments.packages import content_hash
from backend.domain.environments.play import PlayPhase
from backend.domain.rollouts.rollout import task_of
from backend.domain.vocabulary import PolicyKind, RolloutStatus, Split
from backend.environments.library import load_package
from backend.environments.play import PlayView, play_view
from tests.envhost_fixture import HostProcess
from tests.environments.play.conftest import work
from tests.factories import make_environment, make_package_version, make_policy
from workers.policies.base import EpisodeStart, Player, Policy, Reply, Turn
from workers.policies.scripted import ScriptedPolicy
from workers.rollouts.seats import SeatPolicy
from workers.tasks.execute import run_async
from workers.tasks.hand_play import PlayedScene, Scene, SeatReply, replay

NAME = "tictactoe_duel"
PLAY = f"/api/v1/environments/{NAME}/play"


@dataclass
class Improviser(Policy, Player):
    """Never plays the same twice, as a sampled model might: alternates between the first and the last legal move."""

    turns: int = 0

    async def begin(self, start: EpisodeStart) -> Player:
        return self

    async def act(self, turn: Turn) -> Reply:
        self.turns += 1
        return Reply(f"<move>{turn.observation['legal_moves'][-(self.turns % 2)]}</move>", tokens_out=7)


def move(cell: int) -> str:
    return f"<move>{cell}</move>"


def test_turns_of_a_model_are_replayed_and_not_sampled_again(found_host: HostProcess) -> None:
    files = load_package(NAME)
    manifest, rival = read_manifest(files["openenv.yaml"]), Improviser()
    task = task_of(manifest, Split.HELDOUT, 9)  # o moves first

    def play(replies: list[str], others: dict[str, list[SeatReply]], by: Policy = rival) -> PlayedScene:
        scene = Scene(task, content_hash(files), files, manifest, replies, "x", others)
        return run_async(replay(scene, opponent=SeatPolicy("rival" if by is rival else "wrong", by)))

    opened = play([], {})
    first = opened.rollout.opening["legal_moves"][0]
    one = play([move(first)], opened.others)
    before, sampled = one.rollout.steps[0].observation, rival.turns
    two = play([move(first), move(before["legal_moves"][0])], one.others)
    assert two.rollout.steps[0].observation == before
    assert two.others["o"][: len(one.others["o"])] == one.others["o"]
    assert rival.turns - sampled == len(two.others["o"]) - len(one.others["o"])
    back = play([move(first)], two.others)  # the person took a move back
    assert back.others == one.others
    assert SeatReply.from_json(one.others["o"][0].as_json()) == one.others["o"][0]
    # a script continues after what a model played, and a model after the script
    second = move(before["legal_moves"][0])
    script = play([move(first), second], one.others, ScriptedPolicy("wrong"))
    assert [each.by for each in script.others["o"]] == ["rival", "rival", "wrong"]
    again = play([move(first), second], script.others, ScriptedPolicy("wrong"))
    assert again.others == script.others
    assert play([move(first), second], script.others).others == script.others


@pytest.fixture
def duel(installed: None) -> None:
    with transaction() as session:
        make_package_version(session, load_package(NAME), make_environment(session, NAME))
        make_policy(session, name="random", configuration={"script": "random"})
        make_policy(session, name="wrong", configuration={"script": "wrong"})
        down = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "attempts": 1, "timeout_seconds": 1}
        make_policy(session, name="down", kind=PolicyKind.OPENAI_API, configuration=down)


def view(run_id: str) -> PlayView:
    with transaction() as session:
        return play_view(session, NAME, uuid.UUID(run_id))


def finish(ada: TestClient, run_id: str) -> dict[str, Any]:
    """Play the best move of the game's own script to the end."""
    while (seen := ada.get(f"{PLAY}/{run_id}").json())["phase"] == "yours":
        ada.post(f"{PLAY}/{run_id}/reply", json={"reply": seen["choices"][0]})
        work()
    return dict(seen)


@pytest.mark.usefixtures("duel")
def test_an_endpoint_that_is_down_loses_nothing_and_another_opponent_continues(ada: TestClient) -> None:
    task = {"split": "heldout", "index": 0, "seat": "x"}
    started = ada.post(PLAY, json=task | {"opponent": "down"}).json()
    address = f"{PLAY}/{started['run_id']}"
    work()
    seen = ada.get(address).json()
    if seen["phase"] == "yours":  # x moves first
        ada.post(f"{address}/reply", json={"reply": seen["choices"][0]})
        work()
        seen = ada.get(address).json()
    assert (seen["phase"], seen["opponent"]) == ("stuck", "down")
    assert "seat o (down)" in seen["message"]
    page = ada.get(f"/environments/{NAME}/play/{started['run_id']}").text
    assert "A policy did not answer" in page
    kept = view(started["run_id"]).state.replies
    assert ada.post(f"{address}/opponent", json={"opponent": "wrong"}).json()["opponent"] == "wrong"
    work()
    continued = view(started["run_id"])
    assert continued.state.phase is PlayPhase.YOURS
    assert continued.state.replies == kept
    assert continued.state.is_assisted
    over = finish(ada, started["run_id"])
    assert (over["status"], over["seat"]) == ("completed", "x")
    assert over["score"] in {0.0, 0.5, 1.0}
    ended = view(started["run_id"])
    assert ended.rollout.status is RolloutStatus.COMPLETED
    assert ended.rollout.metrics["match_score"] == over["score"]
    assert "against wrong" in ada.get(f"/environments/{NAME}/play/{started['run_id']}").text


@pytest.mark.usefixtures("duel")
def test_a_person_takes_either_seat_of_a_stored_game(ada: TestClient) -> None:
    first = ada.post(PLAY, json={"split": "heldout", "index": 1, "seat": "o", "opponent": "wrong"}).json()
    work()
    over = finish(ada, first["run_id"])
    assert not view(first["run_id"]).state.is_assisted
    steps = view(first["run_id"]).rollout.steps
    assert "Your seat" in ada.get(f"/rollouts/{over['rollout_id']}").text

    def branch(**fields: object) -> dict[str, Any]:
        sent = ada.post(f"{PLAY}/from", json={"rollout_id": over["rollout_id"], "turns": 1, **fields}).json()
        work()
        return dict(ada.get(f"{PLAY}/{sent['run_id']}").json())

    same = branch()
    assert (same["seat"], same["opponent"], same["turns"]) == ("o", "wrong", 1)
    assert same["steps"][0]["observation"] == steps[0]["observation"]
    assert view(same["run_id"]).state.is_assisted
    other = branch(seat="x", opponent="random")
    assert (other["seat"], other["opponent"], other["authors"]) == ("x", "random", ["wrong"])
    refused = ada.post(f"{PLAY}/from", json={"rollout_id": over["rollout_id"], "seat": "z"})
    assert "The seats are x, o" in refused.json()["fields"]["seat"]


@pytest.mark.usefixtures("duel")
def test_a_seat_or_an_opponent_that_is_not_there_is_refused(ada: TestClient) -> None:
    page = ada.get(f"/environments/{NAME}/play").text
    assert "Your seat" in page
    assert "Opponent" in page
    for field, value in (("seat", "z"), ("opponent", "nobody"), ("opponent", "human")):
        assert field in ada.post(PLAY, json={field: value}).json()["fields"]


@pytest.mark.usefixtures("counter")
def test_an_environment_without_seats_has_no_opponent(ada: TestClient) -> None:
    assert "Your seat" not in ada.get("/environments/counter/play").text
    refused = ada.post("/api/v1/environments/counter/play", json={"opponent": "random"})
    assert "declares no seats" in refused.json()["fields"]["opponent"]
