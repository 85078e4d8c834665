"""Whole training runs on tic-tac-toe: what they leave behind, stopped and resumed."""

import math
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import text

from backend.core.session import transaction
from backend.domain.vocabulary import Phase, RunStatus
from backend.settings import get_settings
from tests.training.conftest import (
    built_in,
    checkpoints_of,
    counts_of,
    make_run,
    points_of,
    run_of,
    take_up_again,
    weights_of,
)
from workers.models.load import load_folder
from workers.training.run import train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

EVERYTHING = {
    (Phase.WARM_UP, None): 48,
    (Phase.HELDOUT, None): 9,
    (Phase.HELDOUT, 0): 9,
    **{(Phase.TRAIN, step): 12 for step in (1, 2, 3, 4)},
    **{(Phase.HELDOUT, step): 9 for step in (2, 4)},
}
NewRun = Callable[..., uuid.UUID]


@pytest.fixture(scope="module")
def installation(shared_installation: None) -> None:
    """Several tests share the run."""


@pytest.fixture(scope="module")
def whole(installation: None) -> uuid.UUID:
    """A run that was not interrupted."""
    run_id = make_run()
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason
    return run_id


def test_a_run_leaves_checkpoints_curves_and_all_its_rollouts(whole: uuid.UUID) -> None:
    run_id = whole
    run, checkpoints, curves = run_of(run_id), checkpoints_of(run_id), points_of(run_id)
    assert list(checkpoints) == [("untrained", 0), ("sft", 12), ("grpo", 2), ("grpo", 4)]
    assert counts_of(run_id) == EVERYTHING
    best = [row for row in checkpoints.values() if row.is_best]
    assert len(best) == 1
    assert best[0].heldout_reward == max(row.heldout_reward or 0 for row in checkpoints.values())
    assert run.summary["best"]["checkpoint_id"] == str(best[0].id)
    for name in ("reward", "reward_std", "columns/win", "entropy", "completions/mean_length", "completions/truncated"):
        assert sorted(curves[name]) == [1, 2, 3, 4]
    for name in (
        "groups/no_variance",
        "loss",
        "grad_norm",
        "learning_rate",
        "memory/peak_mb",
        "seconds/step",
        "tokens_per_second",
    ):
        assert all(value is not None and math.isfinite(value) for value in curves[name].values())
    assert sorted(curves["heldout/reward"]) == sorted(curves["heldout/level/2"]) == [0, 2, 4]
    for name in ("optimiser", "other", "idle", "storing", "detectors", "steering", "examination"):
        assert sorted(curves[f"seconds/{name}"]) == [1, 2, 3, 4]
    assert {step for step, seconds in curves["seconds/examination"].items() if seconds} == {2, 4}
    assert all((curves[f"seconds/{name}"][3] or 0) > 0 for name in ("optimiser", "storing", "detectors", "steering"))
    assert curves["sft/loss"]
    assert curves["sft/tokens_per_second"].keys() == curves["sft/seconds/step"].keys() == curves["sft/loss"].keys()
    for row in checkpoints.values():
        load_folder(get_settings().data / "artifacts" / row.artifact)
    assert not (get_settings().data / "training" / str(run_id)).exists()


@contextmanager
def stop_requested_at_step(run_id: uuid.UUID, step: int) -> Iterator[None]:
    """Have the database request the stop in the transaction that stores the step's first rollouts."""
    with transaction() as session:
        session.execute(
            text(f"""
                CREATE FUNCTION request_stop() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN
                    UPDATE runs SET stop_requested_at = now() WHERE id = '{run_id}' AND stop_requested_at IS NULL;
                    RETURN NULL;
                END $$;
                CREATE TRIGGER request_stop AFTER INSERT ON rollouts FOR EACH ROW
                WHEN (NEW.run_id = '{run_id}' AND NEW.training_step = {step} AND NEW.phase = 'train')
                EXECUTE FUNCTION request_stop()
            """)
        )
    yield
    with transaction() as session:
        session.execute(text("DROP FUNCTION request_stop CASCADE"))


def test_a_stopped_run_continues_to_the_same_weights(new_run: NewRun, whole: uuid.UUID) -> None:
    cut = new_run()
    with stop_requested_at_step(cut, 2):
        assert train(cut).status is RunStatus.STOPPED
    assert (Phase.TRAIN, 2) in counts_of(cut)
    assert ("grpo", 4) not in checkpoints_of(cut)

    take_up_again(cut)
    assert train(cut).status is RunStatus.COMPLETED
    assert run_of(cut).status is RunStatus.COMPLETED, run_of(cut).reason
    assert counts_of(cut) == EVERYTHING
    assert weights_of(checkpoints_of(cut)["grpo", 4]) == weights_of(checkpoints_of(whole)["grpo", 4])


def test_a_closed_gate_pauses_with_advice_and_opens_to_who_resumes(new_run: NewRun) -> None:
    run_id = new_run(gate={"minimum_reward": 2.0}, grpo={"steps": 1})
    assert train(run_id).status is RunStatus.PAUSED
    paused = run_of(run_id)
    assert "required: 2" in (paused.reason or "")
    assert "Warm up longer" in (paused.reason or "")
    take_up_again(run_id)
    assert train(run_id).status is RunStatus.COMPLETED


def test_sft_alone_ends_after_the_warm_up_and_grpo_starts_from_its_checkpoint(new_run: NewRun) -> None:
    warmed = new_run(recipe="sft")
    assert train(warmed).status is RunStatus.COMPLETED
    assert list(checkpoints_of(warmed)) == [("untrained", 0), ("sft", 12)]
    start = checkpoints_of(warmed)["sft", 12]
    run_id = new_run(
        recipe="grpo", model={"source": "checkpoint", "checkpoint": start.id}, grpo={"steps": 2, "beta": 0.05}
    )
    assert train(run_id).status is RunStatus.COMPLETED
    assert list(checkpoints_of(run_id)) == [("untrained", 0), ("grpo", 2)]
    assert weights_of(checkpoints_of(run_id)["untrained", 0]) == weights_of(start)
    assert points_of(run_id)["divergence"][1] == pytest.approx(0, abs=1e-4)


def test_an_environment_that_breaks_pauses_the_run_with_the_reason(new_run: NewRun) -> None:
    files = built_in("tictactoe")
    module = "server/tictactoe_environment.py"
    broken = "        if self._seed < 10_000_000 and self._seed >= 96:\n            raise ZeroDivisionError('broken')\n"
    files[module] = files[module].replace("        self._turns += 1\n", broken + "        self._turns += 1\n")
    run_id = new_run(files, sft={"episodes": 200})
    assert train(run_id).status is RunStatus.PAUSED
    assert "environment: step: broken" in (run_of(run_id).reason or "")
