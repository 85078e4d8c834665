"""What leaves of a training run on several environments says of each rollout where it was played."""

import json

import pytest
from fastapi.testclient import TestClient

from backend.core.session import transaction
from backend.domain.vocabulary import Phase, RunKind, Split
from backend.environments.tables import EnvironmentVersion
from backend.runs.tables import Run
from tests.factories import (
    make_environment,
    make_environment_version,
    make_group,
    make_policy,
    make_rollout,
    make_run,
    make_task,
)
from tests.rollouts.exchange.test_round_trip import exported

SAID = [{"role": "user", "content": "Go?"}, {"role": "assistant", "content": "<move>4</move>"}]


@pytest.fixture
def mixed_run(version: EnvironmentVersion) -> Run:
    """One rollout of `tictactoe`, one of `guessing`."""
    with transaction() as session:
        own = session.get_one(EnvironmentVersion, version.id)
        other = make_environment_version(
            session, make_environment(session, "guessing"), number=2, weights={"win": 5.0, "close": 0.5}
        )
        run = make_run(
            session,
            session.merge(own),
            make_policy(session, "learner"),
            kind=RunKind.TRAINING,
            columns=["win", "close"],
            weights=[1.0, 0.5],
            configuration={"mix": ["guessing@2=0.5"]},
        )
        group = make_group(session, run, index=0, phase=Phase.TRAIN, step=1)
        make_rollout(session, run, group, [1.0, 0.0], reward=1.0, messages=SAID)
        group = make_group(session, run, index=1, phase=Phase.TRAIN, step=1)
        group.task = make_task(session, other.id, Split.TRAIN, 1)
        make_rollout(session, run, group, [1.0, 1.0], reward=5.5, messages=SAID)
        return run


def test_records_name_their_own_environment_and_its_weights(api: TestClient, mixed_run: Run) -> None:
    found = [json.loads(line) for line in exported(api, mixed_run, "jsonl").splitlines()]
    assert [(each["environment"], each["version"]) for each in found] == [("tictactoe", 1), ("guessing", 2)]
    assert found[0]["content_hash"] != found[1]["content_hash"]
    assert found[0]["rewards"] == {"win": {"score": 1.0, "weight": 1.0}}
    assert found[1]["rewards"] == {
        "win": {"score": 1.0, "weight": 5.0},
        "close": {"score": 1.0, "weight": 0.5},
    }


def test_every_format_can_be_written_and_verifiers_names_the_environment(api: TestClient, mixed_run: Run) -> None:
    for kind in ("parquet", "huggingface", "verifiers_v0", "inspect"):
        assert exported(api, mixed_run, kind)
    traces = [json.loads(line) for line in exported(api, mixed_run, "verifiers_v1").splitlines()]
    assert [each["env"]["name"] for each in traces] == ["tictactoe@1", "guessing@2"]


def test_conversations_for_training_name_their_own_environment(api: TestClient, mixed_run: Run) -> None:
    answer = api.get("/sft/file", params={"run": str(mixed_run.id), "repeats": "true"})
    assert answer.status_code == 200, answer.text
    found = [json.loads(line) for line in answer.text.splitlines()]
    assert {each["environment"] for each in found} == {"tictactoe", "guessing"}
