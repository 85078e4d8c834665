"""A training run prunes by its rule while it runs."""

import uuid
from collections.abc import Callable

import pytest

from backend.core.session import transaction
from backend.domain.vocabulary import RunStatus
from backend.runs.tables import RunLogLine
from backend.settings import get_settings
from tests.training.conftest import checkpoints_of, take_up_again
from workers.training.run import train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]


def test_a_run_keeps_what_its_rule_states_and_can_still_be_claimed(new_run: Callable[..., uuid.UUID]) -> None:
    run_id = new_run(heldout={"every": 1, "tasks": 3}, checkpoints={"every": 1, "keep_last": 1})
    assert train(run_id).status is RunStatus.COMPLETED
    saved = checkpoints_of(run_id)
    gone = {name for name, row in saved.items() if row.pruned_at is not None}
    assert gone <= {("grpo", 1), ("grpo", 2), ("grpo", 3)}
    assert len(gone) >= 2
    for name, row in saved.items():
        stored = (get_settings().data / "artifacts" / row.artifact / "model.safetensors").exists()
        assert stored is (name not in gone)
        assert row.heldout
    with transaction() as session:
        lines = [line.message for line in session.query(RunLogLine).filter_by(run_id=run_id)]
    assert sum("weights pruned by the rule" in line for line in lines) == len(gone)
    take_up_again(run_id)
    assert train(run_id).status is RunStatus.COMPLETED
