"""What leaves in a format that comes back, comes back equal."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from backend.domain.vocabulary import RolloutStatus
from backend.runs.tables import Run
from tests.rollouts.exchange.conftest import Import
from tests.rollouts.exchange.rollouts import compared, stored

FORMATS = {
    "jsonl": "jsonl",
    "parquet": "parquet",
    "huggingface": "zip",
    "verifiers_v0": "zip",
    "verifiers_v1": "jsonl",
}


def exported(api: TestClient, run: Run, kind: str, **query: Any) -> bytes:
    answer = api.get(f"/runs/{run.id}/export", params={"format": kind, **query})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-disposition"].startswith("attachment")
    return answer.content


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
def test_every_rollout_comes_back_equal(api: TestClient, rich_run: Run, import_rollouts: Import, kind: str) -> None:
    content = exported(api, rich_run, kind)
    run = import_rollouts(content, f"rollouts.{FORMATS[kind]}", environment="tictactoe")
    assert run["status"] == "completed", run["reason"]
    assert [compared(rollout) for rollout in stored(run["id"])] == [compared(each) for each in stored(rich_run.id)]
    assert run["columns"] == rich_run.columns
    assert run["weights"] == rich_run.weights
    assert run["policy"] == "gpt-small (external)"


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
def test_a_failure_stays_a_failure_and_never_becomes_a_zero(
    api: TestClient, rich_run: Run, import_rollouts: Import, kind: str
) -> None:
    run = import_rollouts(exported(api, rich_run, kind), f"x.{FORMATS[kind]}", environment="tictactoe")
    failed = [rollout for rollout in stored(run["id"]) if rollout.status is RolloutStatus.FAILED]
    assert [(rollout.reward, rollout.columns) for rollout in failed] == [(None, None)]
    assert run["summary"]["failed"] == 1
    assert run["summary"]["completed"] == 5


def test_only_what_passes_a_filter_leaves(api: TestClient, rich_run: Run) -> None:
    found = exported(api, rich_run, "jsonl", where="status = failed")
    assert found.count(b"\n") == 1
    assert b"no answer" in found


def test_a_filter_that_cannot_be_read_is_refused_before_anything_leaves(api: TestClient, rich_run: Run) -> None:
    answer = api.get(f"/runs/{rich_run.id}/export", params={"where": "win == == 3"})
    assert answer.status_code == 422
    assert "where" in answer.json()["fields"]


def test_rollouts_of_the_same_version_are_of_its_tasks(api: TestClient, rich_run: Run, import_rollouts: Import) -> None:
    run = import_rollouts(exported(api, rich_run, "jsonl"))
    assert run["environment"] == "tictactoe"
    assert run["configuration"]["source"]["tasks"] == "shared"
    theirs = {rollout.group.task_id for rollout in stored(run["id"])}
    assert theirs == {rollout.group.task_id for rollout in stored(rich_run.id)}
