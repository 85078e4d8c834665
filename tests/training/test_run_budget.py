"""Training runs that end because their budget is used up."""

import uuid
from collections.abc import Callable

import pytest

from backend.domain.vocabulary import RunStatus
from backend.settings import get_settings
from tests.training.conftest import checkpoints_of, run_of
from workers.training.run import train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

NewRun = Callable[..., uuid.UUID]


def test_a_run_ends_with_a_heldout_evaluation_when_its_rollouts_are_used_up(new_run: NewRun) -> None:
    run_id = new_run(budget={"rollouts": 30})
    outcome = train(run_id)
    assert outcome.status is RunStatus.COMPLETED
    assert "The budget of 30 rollouts is used up." in (run_of(run_id).reason or "")
    assert list(checkpoints_of(run_id)) == [("untrained", 0), ("sft", 12), ("grpo", 2), ("grpo", 3)]
    assert checkpoints_of(run_id)["grpo", 3].heldout
    assert run_of(run_id).summary["budget"]["rollouts"] == {"used": 36, "limit": 30, "left": 0}


def test_minutes_are_counted_over_all_attempts_and_stages(new_run: NewRun) -> None:
    run_id = new_run(budget={"minutes": 5.0})
    folder = get_settings().data / "training" / str(run_id)
    folder.mkdir(parents=True)
    (folder / "minutes.txt").write_text("4.9999")
    assert train(run_id).status is RunStatus.COMPLETED
    assert "The budget of 5 minutes is used up." in (run_of(run_id).reason or "")
    assert list(checkpoints_of(run_id)) == [("untrained", 0), ("sft", 1)]
    assert checkpoints_of(run_id)["sft", 1].heldout
    assert run_of(run_id).summary["best"]
