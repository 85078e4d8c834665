"""A run whose warm-up would find nothing to learn from is refused before it is queued."""

import json
import uuid
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Phase
from backend.environments.tables import EnvironmentVersion
from tests.factories import make_environment_version, make_group, make_rollout, make_rollouts, make_run


@pytest.fixture
def version(session: Session) -> EnvironmentVersion:
    return make_environment_version(session)


def start(trainer: TestClient, version: EnvironmentVersion, **sft: Any) -> Any:
    body = {
        "version_id": str(version.id),
        "without_certificate": "only to see whether it starts",
        "configuration": {"sft": sft},
    }
    return trainer.post("/api/v1/training", json=body)


def test_stored_rollouts_must_be_there(trainer: TestClient, session: Session, version: EnvironmentVersion) -> None:
    run = make_run(session, version)
    make_rollouts(session, run, [[1.0, 1.0, 0.0]])  # on a held-out task
    answer = start(trainer, version, source="rollouts", runs=[str(run.id)])
    assert answer.status_code == 422
    assert "held-out tasks are never used" in answer.json()["fields"]["sft.runs"]
    make_rollout(session, run, make_group(session, run, phase=Phase.TRAIN, step=0), [1.0, 1.0, 0.0])
    started = start(trainer, version, source="rollouts", runs=[str(run.id)], where="win = 1")
    assert started.status_code == 201, started.text
    assert started.json()["configuration"]["sft"]["runs"] == [str(run.id)]


def test_an_environment_without_a_script_can_learn_from_rollouts(trainer: TestClient, session: Session) -> None:
    version = make_environment_version(session, scripts=[])
    assert start(trainer, version).status_code == 422
    run = make_run(session, version)
    make_rollout(session, run, make_group(session, run, phase=Phase.TRAIN, step=0), [1.0, 1.0, 0.0])
    assert start(trainer, version, source="rollouts", runs=[str(run.id)]).status_code == 201


def test_the_file_must_be_there_and_not_deleted(trainer: TestClient, version: EnvironmentVersion) -> None:
    refused = start(trainer, version, source="file", file=str(uuid.uuid4()))
    assert "sft.file" in refused.json()["fields"]
    sent = {"file": ("a.jsonl", json.dumps({"prompt": "a", "completion": "b"}).encode())}
    file_id = trainer.post("/api/v1/training/examples", files=sent).json()["id"]
    assert start(trainer, version, source="file", file=file_id).status_code == 201


def test_the_filter_of_scripted_episodes_must_be_understood(trainer: TestClient, version: EnvironmentVersion) -> None:
    refused = start(trainer, version, script_where="wins > 0")
    assert refused.status_code == 422
    assert "wins" in refused.json()["fields"]["sft.script_where"]
    assert start(trainer, version, script_where="win > 0 and turns < 9").status_code == 201


def test_marked_episodes_must_be_there(trainer: TestClient, version: EnvironmentVersion) -> None:
    assert "sft.demonstrations" in start(trainer, version, demonstrations=0.5).json()["fields"]


def test_shares_that_do_not_fit_are_refused(trainer: TestClient, version: EnvironmentVersion) -> None:
    assert "more than 1" in start(trainer, version, demonstrations=0.7, also_rollouts=0.5, where="win = 1").text
    assert "is the main source" in start(trainer, version, also_script=0.5).text
    assert "select rollouts" in start(trainer, version, source="rollouts").text
    assert "select the uploaded file" in start(trainer, version, source="file").text
