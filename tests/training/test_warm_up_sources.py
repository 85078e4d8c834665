"""Warm-ups from stored rollouts and uploaded files, killed and resumed; further attempts."""

import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select

from backend.core import artifacts
from backend.core.session import transaction
from backend.domain.ids import new_id
from backend.domain.training.example_lines import write_line
from backend.domain.vocabulary import Phase, RunStatus
from backend.rollouts.tables import Rollout
from backend.settings import get_settings
from backend.training.example_sources import conversations_of
from backend.training.tables import ExampleFile
from tests.training.conftest import (
    checkpoints_of,
    counts_of,
    kill_and_go_on,
    make_run,
    points_of,
    run_of,
    start_child,
    take_up_again,
    weights_of,
)
from workers.training.run import train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]
NewRun = Callable[..., uuid.UUID]


@pytest.fixture(scope="module")
def installation(shared_installation: None) -> None:
    """All tests learn from the same stored episodes."""


@pytest.fixture(scope="module")
def played(installation: None) -> uuid.UUID:
    """A run whose warm-up left 48 scripted episodes on training tasks."""
    run_id = make_run(recipe="sft", sft={"steps": 1})
    assert train(run_id).status is RunStatus.COMPLETED
    return run_id


@pytest.fixture(scope="module")
def file_id(played: uuid.UUID) -> uuid.UUID:
    """The same episodes as an uploaded file."""
    file_id = new_id()
    path = get_settings().data / "lessons.jsonl"
    with transaction() as session:
        ids = session.scalars(select(Rollout.id).where(Rollout.run_id == played, Rollout.phase == Phase.WARM_UP)).all()
        lines = [write_line(each) for each in conversations_of(session, ids)]
        path.write_bytes(b"".join(lines))
        artifacts.put_file(path, f"lessons/{file_id}.jsonl")
        session.add(
            ExampleFile(
                id=file_id,
                name="games",
                artifact=f"lessons/{file_id}.jsonl",
                size_bytes=path.stat().st_size,
                conversations=len(lines),
                statistics={},
            )
        )
    return file_id


@pytest.fixture(params=["rollouts", "file"])
def source(request: pytest.FixtureRequest, played: uuid.UUID, file_id: uuid.UUID) -> dict[str, Any]:
    """Warm-up settings from stored data."""
    if request.param == "file":
        return {"source": "file", "file": file_id}
    return {"source": "rollouts", "runs": [played], "where": "phase = warm_up"}


def test_a_model_from_scratch_learns_from_what_is_stored_and_killed_continues_to_the_same_weights(
    new_run: NewRun, source: dict[str, Any]
) -> None:
    choices: dict[str, Any] = {"recipe": "sft", "sft": {**source, "steps": 24}}
    whole, cut = new_run(**choices), new_run(**choices)
    assert train(whole).status is RunStatus.COMPLETED, run_of(whole).reason
    assert run_of(whole).summary["lessons"] == {source["source"]: {"lessons": 48, "too_long": 0, "silent": 0}}
    assert (Phase.WARM_UP, None) not in counts_of(whole)  # the script did not play
    assert points_of(whole)["sft/loss"]

    child = start_child(cut)
    while "sft/loss" not in points_of(cut):
        assert child.poll() is None
        time.sleep(0.02)
    kill_and_go_on(cut, child)
    assert weights_of(checkpoints_of(cut)["sft", 24]) == weights_of(checkpoints_of(whole)["sft", 24])
    assert run_of(cut).summary["lessons"] == run_of(whole).summary["lessons"]


def test_sources_mix_and_what_does_not_fit_is_said(new_run: NewRun, played: uuid.UUID) -> None:
    mixed = {"also_rollouts": 0.25, "runs": [played], "where": "phase = warm_up and turns >= 4"}
    run_id = new_run(recipe="sft", sft=mixed, model={"context": 96})
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason
    told = run_of(run_id).summary["lessons"]
    assert set(told) == {"script", "rollouts"}
    assert told["script"]["lessons"] + told["script"]["too_long"] == 48


def test_only_what_the_script_did_well_is_imitated(new_run: NewRun) -> None:
    run_id = new_run(recipe="sft", sft={"script_where": "win >= 0.5"})
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason
    with transaction() as session:
        played = select(Rollout.columns).where(Rollout.run_id == run_id, Rollout.phase == Phase.WARM_UP)
        outcomes = [columns[0] for columns in session.scalars(played)]
    good = sum(win >= 0.5 for win in outcomes)
    assert 0 < good < len(outcomes) == 48
    assert run_of(run_id).summary["lessons"]["script"]["lessons"] == good


def test_a_script_that_never_does_well_is_a_failure_with_a_message(new_run: NewRun) -> None:
    run_id = new_run(recipe="sft", sft={"script_where": "win > 1"})
    assert train(run_id).status is RunStatus.FAILED
    assert "none of 48 scripted episodes passes" in (run_of(run_id).reason or "")


def test_nothing_to_learn_from_is_a_failure_with_a_message(new_run: NewRun, played: uuid.UUID) -> None:
    choice = {"source": "rollouts", "runs": [played], "where": "phase = heldout"}
    run_id = new_run(recipe="sft", sft=choice)
    assert train(run_id).status is RunStatus.FAILED
    assert "no stored rollout passes" in (run_of(run_id).reason or "")


def test_a_closed_gate_tries_again_longer_and_keeps_every_attempt(new_run: NewRun) -> None:
    gate = {"minimum_reward": 2.0, "retries": 1}
    run_id = new_run(gate=gate, grpo={"steps": 1}, sft={"steps": 8})
    assert train(run_id).status is RunStatus.PAUSED
    assert set(checkpoints_of(run_id)) == {("untrained", 0), ("sft", 8), ("sft", 20)}
    told = run_of(run_id).summary["warm_up"]["attempts"]
    assert [(each["number"], each["steps"], each["best"]) for each in told] == [(1, 8, 8), (2, 12, 20)]
    assert told[0]["seed"] != told[1]["seed"]
    rewards = {row.step: row.heldout_reward for key, row in checkpoints_of(run_id).items() if key[0] == "sft"}
    (chosen,) = [each["best"] for each in told if each["is_chosen"]]
    assert rewards[chosen] == max(rewards.values())
    take_up_again(run_id)
    assert train(run_id).status is RunStatus.COMPLETED
    assert counts_of(run_id)[Phase.HELDOUT, 0] == 9


def test_a_first_attempt_that_passes_is_the_only_one(new_run: NewRun) -> None:
    run_id = new_run(gate={"retries": 3}, grpo={"steps": 1})
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason
    assert [key for key in checkpoints_of(run_id) if key[0] == "sft"] == [("sft", 12)]
