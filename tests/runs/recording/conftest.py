"""Recorders commit for real."""

import uuid
from collections.abc import Callable

import pytest

from backend.core.session import transaction
from backend.domain.rollouts.rollout import Rollout, Step, task_of
from backend.domain.vocabulary import ErrorKind, Phase, RolloutStatus, RunStatus, Split, StopReason
from backend.runs.tables import Run
from tests.factories import make_manifest, make_run
from workers.storage.recorder import RunRecorder

MANIFEST = make_manifest("counting")


@pytest.fixture
def start_run(committed_database: str) -> Callable[..., uuid.UUID]:
    """A committed run; returns its id."""

    def start(**fields: object) -> uuid.UUID:
        with transaction() as session:
            return make_run(session, **{"status": RunStatus.RUNNING, **fields}).id

    return start


@pytest.fixture
def run_id(start_run: Callable[..., uuid.UUID]) -> uuid.UUID:
    return start_run()


@pytest.fixture
def recorder(run_id: uuid.UUID) -> RunRecorder:
    return RunRecorder(run_id)


def run_of(run_id: uuid.UUID) -> Run:
    with transaction() as session:
        return session.get_one(Run, run_id)


def make_rollout(group: int = 0, member: int = 0, *, text: str = "<move>4</move>", **fields: object) -> Rollout:
    """A completed one of task `group` of the training split, as the engine hands it over."""
    task = task_of(MANIFEST, Split.TRAIN, group)
    step = Step(text, {"cell": 4}, {"board": "....X...."}, "Board?", {"win": 1.0}, True, None, 0.01, 0.001)
    values: dict[str, object] = {
        "stop_reason": StopReason.DONE,
        "reward": 1.1,
        "columns": {"win": 1.0, "format": 1.0, "invalid_move": 1.0},
        "steps": [step],
        "messages": [{"role": "user", "content": "Board?"}, {"role": "assistant", "content": text}],
        "opening": {"board": "........."},
        "tokens_out": 3,
        **fields,
    }
    status = values.pop("status", RolloutStatus.COMPLETED)
    return Rollout(task, Phase.EVALUATION, group, member, status, **values)  # type: ignore[arg-type]


def make_failed(group: int = 0, member: int = 0) -> Rollout:
    return make_rollout(
        group,
        member,
        status=RolloutStatus.FAILED,
        stop_reason=None,
        error_kind=ErrorKind.SANDBOX,
        error_message="the connection was lost",
        reward=None,
        columns={},
    )
