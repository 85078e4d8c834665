"""Everything that returns to before GRPO uses the warm-up checkpoint from which GRPO started."""

import pytest
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import PolicyKind, RunKind, RunStatus
from backend.errors import InvalidInput
from backend.runs.tables import Run
from backend.studies.patterns import last_honest_checkpoint
from backend.studies.queries import BRANCH, base_of, start_of
from backend.training.alarms import good_checkpoint
from backend.training.branches import (
    branch_points,
    checkpoint_for,
    newest_before,
    start_branch,
)
from backend.training.tables import Alarm
from tests.factories import make_checkpoint, make_flag, make_member, make_policy, make_run


@pytest.fixture
def run(session: Session) -> Run:
    """A warm-up with its best held-out evaluation at step 100, and GRPO from it."""
    policy = make_policy(session, kind=PolicyKind.LOCAL)
    configuration = TrainingConfiguration.model_validate({"sft": {"examine_every": 100}}).resolved()
    run = make_run(
        session, policy=policy, kind=RunKind.TRAINING, status=RunStatus.COMPLETED, configuration=configuration
    )
    make_checkpoint(session, policy, run, stage="untrained", step=0, heldout={"training_step": None})
    for step, reward, at in ((100, 0.6, 0), (200, 0.4, None)):
        reached = {"heldout_reward": reward, "heldout": {"training_step": at}}
        make_checkpoint(session, policy, run, stage="sft", step=step, **reached)
    make_checkpoint(session, policy, run, stage="grpo", step=20, heldout_reward=0.7)
    return run


def saved(session: Session, run: Run, stage: str, step: int) -> Checkpoint:
    return session.query(Checkpoint).filter_by(run_id=run.id, stage=stage, step=step).one()


def test_everything_before_grpo_is_the_one_that_was_chosen(session: Session, run: Run) -> None:
    chosen, after = saved(session, run, "sft", 100), saved(session, run, "grpo", 20)
    make_flag(session, run, detector="early_exit", training_step=2)
    assert start_of(session, run) == chosen
    assert checkpoint_for(session, run, None, 0) == chosen
    assert branch_points(session, run) == [chosen, after]
    assert good_checkpoint(session, run, Alarm(step=10, evidence={})) == chosen
    assert newest_before(session, run, 20) == chosen
    assert last_honest_checkpoint(session, run) == chosen
    assert base_of(session, run, after) == chosen


def test_a_branch_measures_its_divergence_from_it(session: Session, run: Run) -> None:
    branch = start_branch(session, make_member(session), run, saved(session, run, "grpo", 20))
    assert branch.configuration[BRANCH]["start_id"] == str(saved(session, run, "sft", 100).id)


def test_while_none_is_chosen_nothing_is_before_grpo(session: Session, run: Run) -> None:
    """A run that stopped in its warm-up: its intermediate checkpoints are no start of GRPO."""
    session.delete(saved(session, run, "grpo", 20))
    saved(session, run, "sft", 100).heldout = {"training_step": None}
    session.flush()
    assert start_of(session, run) is None
    assert branch_points(session, run) == []
    with pytest.raises(InvalidInput):
        checkpoint_for(session, run, None, 0)


def test_without_its_weights_there_is_none(session: Session, run: Run) -> None:
    chosen = saved(session, run, "sft", 100)
    chosen.pruned_at = chosen.created_at
    session.flush()
    assert start_of(session, run) is None
