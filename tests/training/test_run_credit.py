"""Whole training runs with credit by turn, replaced groups and several updates: stored, told, and resumed."""

import uuid
from collections.abc import Callable

import pytest
from sqlalchemy import select
from sqlalchemy.orm import undefer

from backend.db.models import Rollout
from backend.db.session import transaction
from backend.domain.vocabulary import Phase, RunStatus
from tests.training.conftest import checkpoints_of, kill_and_resume, points_of, weights_of
from workers.training.grpo.stage import REPLACED
from workers.training.run import train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

CHOICES = {"grpo": {"steps": 6, "credit": "turn", "replace_uniform": 2, "updates": 2, "temperature_end": 0.7}}


def trained_rollouts(run_id: uuid.UUID) -> list[Rollout]:
    with transaction() as session:
        statement = select(Rollout).where(Rollout.run_id == run_id, Rollout.phase == Phase.TRAIN)
        return list(session.scalars(statement.options(undefer(Rollout.tokens))))


def test_a_killed_run_ends_with_the_same_weights_and_rollouts(new_run: Callable[..., uuid.UUID]) -> None:
    whole, cut = new_run(**CHOICES), new_run(**CHOICES)
    assert train(whole).status is RunStatus.COMPLETED
    kill_and_resume(cut, 3)
    assert weights_of(checkpoints_of(cut)["grpo", 6]) == weights_of(checkpoints_of(whole)["grpo", 6])

    rollouts, again = trained_rollouts(whole), trained_rollouts(cut)
    assert len(rollouts) == len(again)
    assert sorted(each.excerpt for each in rollouts) == sorted(each.excerpt for each in again)
    replaced = [each for each in rollouts if REPLACED in each.metrics]
    learned = [each for each in rollouts if REPLACED not in each.metrics]
    assert len(learned) == 6 * 12
    assert replaced
    assert all(each.advantage is None for each in replaced)
    for each in learned:
        assert each.tokens is not None
        assert each.tokens["turn_advantages"][0] == pytest.approx(each.advantage, abs=1e-4)

    curves = points_of(whole)
    thrown = {step: len([each for each in replaced if each.training_step == step]) for step in range(1, 7)}
    for step, value in curves["groups/replaced"].items():
        assert value == pytest.approx(thrown[step] / (thrown[step] + 12))
    assert curves["temperature"] == pytest.approx({1: 1.0, 2: 0.94, 3: 0.88, 4: 0.82, 5: 0.76, 6: 0.7})
    for name in ("ratio/mean", "ratio/max", "seconds/forward", "seconds/backward", "columns_p90/win", "tokens/out"):
        assert sorted(curves[name]) == [1, 2, 3, 4, 5, 6]
