"""Evaluating a checkpoint as a job does: in a child process, reproducible at any concurrency."""

import uuid
from collections.abc import Callable

import pytest
from sqlalchemy import select
from sqlalchemy.orm import undefer

from backend.checkpoints.tables import Checkpoint
from backend.core.session import transaction
from backend.domain.ids import new_id
from backend.domain.vocabulary import RunKind, RunStatus
from backend.rollouts.tables import Group, Rollout
from backend.runs.tables import Run
from tests.tasks.conftest import check_that_it_only_imported
from tests.training.conftest import checkpoints_of, run_of
from workers.tasks import children, evaluations
from workers.tasks.registry import JobContext
from workers.training.run import train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]


def ask_for_evaluation(checkpoint: Checkpoint, concurrency: int) -> uuid.UUID:
    with transaction() as session:
        trained = session.get_one(Run, checkpoint.run_id)
        run = Run(
            kind=RunKind.EVALUATION,
            name="evaluation",
            status=RunStatus.QUEUED,
            version_id=trained.version_id,
            policy_id=checkpoint.policy_id,
            checkpoint_id=checkpoint.id,
            configuration={"tasks": 12, "concurrency": concurrency, "sampling": {"max_tokens_per_turn": 16}},
            columns=trained.columns,
            weights=trained.weights,
            seed=11,
        )
        session.add(run)
        session.flush()
        return run.id


def test_a_checkpoint_is_evaluated_the_same_way_twice(new_run: Callable[..., uuid.UUID]) -> None:
    trained = new_run(recipe="sft")
    train(trained)
    played = []
    for concurrency in (12, 5):
        run_id = ask_for_evaluation(checkpoints_of(trained)["sft", 12], concurrency)
        evaluations.run(JobContext(new_id(), run_id, {}, 1))
        assert run_of(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason
        with transaction() as session:
            rows = session.scalars(
                select(Rollout)
                .join(Rollout.group)
                .options(undefer(Rollout.messages), undefer(Rollout.tokens))
                .where(Rollout.run_id == run_id)
                .order_by(Group.ordinal)
            ).all()
        played.append([row.messages for row in rows])
        assert len(rows) == 12
        assert all(row.tokens and row.tokens["completion"] for row in rows)
    assert played[0] == played[1]
    assert children.fork_server.process is not None
    check_that_it_only_imported(children.fork_server.process.pid)
