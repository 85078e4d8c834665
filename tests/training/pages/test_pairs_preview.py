"""Preference pairs before the run: which rollouts become pairs, the preview, and the refusal of too few."""

import uuid
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import Phase, RunKind, Verdict
from backend.environments.tables import EnvironmentVersion
from backend.review.tables import VerdictRecord
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from tests.factories import make_environment_version, make_group, make_rollout, make_rollouts, make_run

API = "/api/v1/training"


@pytest.fixture
def version(session: Session) -> EnvironmentVersion:
    return make_environment_version(session)


@pytest.fixture
def rollouts(session: Session, version: EnvironmentVersion) -> list[Rollout]:
    """Two training tasks with a win and a loss each, and one held-out task."""
    run, made = make_run(session, version, name="an evaluation"), []
    for index in range(2):
        group = make_group(session, run, index=index, phase=Phase.TRAIN, step=0)
        for member, win in enumerate((1.0, 0.0)):
            messages = [
                {"role": "user", "content": f"Board {index}?"},
                {"role": "assistant", "content": f"<move>{member}</move>"},
            ]
            made.append(make_rollout(session, run, group, [win, 1.0, 0.0], member=member, messages=messages))
    make_rollouts(session, run, [[1.0, 1.0, 0.0]])
    return made


def preview(client: TestClient, version: EnvironmentVersion, **preferences: Any) -> dict[str, Any]:
    configuration = {"recipe": "dpo", "preferences": preferences}
    answer = client.post(f"{API}/pairs/preview", json={"version_id": str(version.id), "configuration": configuration})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def judge(session: Session, rollout: Rollout, verdict: Verdict) -> None:
    session.add(VerdictRecord(id=uuid.uuid4(), run_id=rollout.run_id, rollout_id=rollout.id, verdict=verdict))
    session.flush()


def test_rewards_and_verdicts_make_pairs_of_training_tasks(
    session: Session, viewer: TestClient, version: EnvironmentVersion, rollouts: list[Rollout]
) -> None:
    found = preview(viewer, version)
    assert (found["pairs"], found["tasks"], found["rollouts"]) == (2, 2, 4)
    assert found["by_reason"] == {"rewards": 2}
    assert any("held-out tasks are excluded" in warning for warning in found["warnings"])
    assert any("at least 32 are needed" in warning for warning in found["warnings"])
    for example in found["examples"]:
        assert (example["chosen_reward"] or 0) > (example["rejected_reward"] or 0)
        assert example["chosen"][0] == example["rejected"][0]

    won, lost, *_ = rollouts
    judge(session, won, Verdict.HACK)
    judge(session, lost, Verdict.HONEST)
    found = preview(viewer, version, source="verdicts")
    assert found["by_reason"] == {"verdicts": 1}
    assert found["examples"][0]["chosen_id"] == str(lost.id)
    assert preview(viewer, version, source="rewards")["pairs"] == 1, "a hack is never preferred"
    assert preview(viewer, version, where="win = 1")["pairs"] == 0


def test_too_few_pairs_refuse_the_run_with_advice(
    trainer: TestClient, version: EnvironmentVersion, rollouts: list[Rollout]
) -> None:
    def start(**preferences: Any) -> Any:
        model = {"source": "base", "base": "models/small"}
        configuration = {"recipe": "dpo", "model": model, "preferences": preferences}
        body = {"version_id": str(version.id), "without_certificate": "to see whether it starts"}
        return trainer.post(API, json={**body, "configuration": configuration})

    refused = start()
    assert refused.status_code == 422
    assert "There are 2 pairs among 4 rollouts" in refused.json()["fields"]["preferences.source"]
    assert "No run of this environment" in start(runs=[str(uuid.uuid4())]).json()["fields"]["preferences.runs"]
    assert "wins" in start(where="wins > 0").json()["fields"]["preferences.where"]
    assert start(fewest=2).status_code == 201


def test_the_form_previews_pairs_side_by_side(
    viewer: TestClient, version: EnvironmentVersion, rollouts: list[Rollout]
) -> None:
    form = {"version_id": str(version.id), "recipe": "dpo"}
    shown = viewer.get("/training/pairs/preview", params=form)
    assert shown.status_code == 200
    for text in ("Preference pairs", "Chosen", "Rejected", "at least 32 are needed", f"/rollouts/{rollouts[0].id}"):
        assert text in shown.text
    hint = viewer.get("/training/pairs/preview", params={**form, "preferences.where": "wins > 0"})
    assert "wins" in hint.text


def test_a_filter_of_rounds_must_be_understood(trainer: TestClient, version: EnvironmentVersion) -> None:
    model = {"source": "base", "base": "models/small"}
    configuration = {"recipe": "rejection_sampling", "model": model, "rejection": {"where": "wins > 0"}}
    body = {"version_id": str(version.id), "without_certificate": "to see whether it starts"}
    refused = trainer.post(API, json={**body, "configuration": configuration})
    assert "wins" in refused.json()["fields"]["rejection.where"]
    configuration["rejection"] = {"where": "turns < 9"}
    assert trainer.post(API, json={**body, "configuration": configuration}).status_code == 201


def test_the_page_of_a_run_lists_its_rounds(
    session: Session, viewer: TestClient, version: EnvironmentVersion, training_run: Run
) -> None:
    row = {"round": 1, "sampled": 800, "kept": 93, "tasks": 100, "solved": 93, "reward": 0.4, "heldout": 0.5}
    training_run.configuration = {**training_run.configuration, "recipe": "rejection_sampling"}
    training_run.summary = {"rounds": [{**row, "success": 0.61}, {**row, "round": 2}]}
    session.flush()
    shown = viewer.get(f"/runs/{training_run.id}")
    assert shown.status_code == 200
    for text in ("Rounds", "93 of 100", "61.0%", "rejection_kept", "Kept in each round"):
        assert text in shown.text
    training_run.configuration = {**training_run.configuration, "recipe": "dpo"}
    session.flush()
    assert "Pairs in the right order" in viewer.get(f"/runs/{training_run.id}").text


@pytest.fixture
def training_run(session: Session, version: EnvironmentVersion) -> Run:
    return make_run(session, version, kind=RunKind.TRAINING, configuration=TrainingConfiguration().resolved())
