"""Kept rewards of a run give the same figures as its rollouts, and are not used once there are other rollouts."""

import uuid
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from sqlalchemy import delete, func, select, text
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Phase, RunKind, RunStatus
from backend.results.figures import outcomes
from backend.results.groups import task_ends
from backend.results.rewards import (
    FigureScope,
    RunRewards,
    count_completed,
    keep_next_rewards,
    keep_rewards,
    read_rewards,
)
from backend.results.run_figures import FiguresRequest, figures_and_rewards
from backend.results.scores import scores, side_of
from backend.results.tables import KeptRewards
from backend.review.judged_curves import _kept_sums, _stored_sums
from backend.rollouts.tables import Rollout
from backend.runs.service import finish_run
from backend.runs.tables import Run
from tests.factories import make_rollouts, make_run, random_rows


def everything_of(session: Session, run: Run, **request: Any) -> list[Any]:
    """All that is computed from a run's rewards, as values that can be compared."""
    figures, rewards = figures_and_rewards(session, run, FiguresRequest(**request))
    compared = scores(session, side_of(session, run))
    arrays = [compared.values, compared.counts, compared.variances, compared.task_ids.view("S16"), compared.levels]
    return [asdict(figures), task_ends(session, rewards, 5), list(compared.keys), [each.tolist() for each in arrays]]


def kept_run(session: Session) -> Run | None:
    return session.scalar(select(Run).join(KeptRewards, KeptRewards.run_id == Run.id))


@pytest.mark.parametrize("request_of", [{}, {"success": "format", "at_least": 0.8}, {"phase": Phase.EVALUATION}])
def test_kept_rewards_give_the_figures_of_the_rollouts(session: Session, request_of: dict[str, Any]) -> None:
    run = make_run(session)
    make_rollouts(session, run, random_rows(48, seed=3, failing=0.2), group_size=4, cost=0.25, stop_reason="done")
    make_rollouts(session, run, [[1, 1, 0], [0, 1, 0], None], phase=Phase.CANARY)
    from_rollouts = everything_of(session, run, **request_of)
    keep_rewards(session, run)
    assert kept_run(session) is run
    assert np.array_equal(repr(everything_of(session, run, **request_of)), repr(from_rollouts))
    # they are what was read: nothing is left that could have been read again
    session.execute(delete(Rollout).where(Rollout.run_id == run.id, Rollout.phase == Phase.EVALUATION))
    assert repr(everything_of(session, run, **request_of)[3]) == repr(from_rollouts[3])


def test_a_step_is_read_as_the_part_of_the_whole(session: Session) -> None:
    run = make_run(session, kind=RunKind.TRAINING)
    for step in range(3):
        make_rollouts(session, run, random_rows(8, seed=step), group_size=2, phase=Phase.TRAIN, step=step)
        make_rollouts(session, run, random_rows(4, seed=9 + step), phase=Phase.HELDOUT, step=step)
    whole = read_rewards(session, run, FigureScope(run.id))
    is_part = (whole.groups["step"] == 1) & (whole.groups["phase"] == b"train       ")
    part = read_rewards(session, run, FigureScope(run.id, Phase.TRAIN, 1))
    assert as_bytes(whole.where(is_part)) == as_bytes(part)
    assert len(part) == outcomes(session, FigureScope(run.id, Phase.TRAIN, 1)).total == 8
    keep_rewards(session, run)
    assert as_bytes(read_rewards(session, run, FigureScope(run.id, Phase.TRAIN, 1))) == as_bytes(part)
    assert len(read_rewards(session, run, FigureScope(run.id, Phase.HELDOUT))) == 12


def as_bytes(rewards: RunRewards) -> tuple[bytes, ...]:
    return rewards.groups.tobytes(), rewards.is_completed.tobytes(), rewards.values.tobytes()


def test_rewards_are_kept_when_a_run_ends_and_read_anew_when_it_goes_on(session: Session) -> None:
    run = make_run(session, status=RunStatus.RUNNING)
    make_rollouts(session, run, [[0, 1, 0], None])
    finish_run(session, run, RunStatus.PAUSED)
    assert kept_run(session) is run
    failed = session.scalars(select(Rollout).where(Rollout.run_id == run.id, Rollout.status == "failed")).one()
    session.delete(failed)
    session.flush()
    make_rollouts(session, run, [[1, 1, 0], [1, 1, 0]], phase=Phase.CHECK)  # other groups
    assert len(read_rewards(session, run, FigureScope(run.id))) == 3
    assert outcomes(session, FigureScope(run.id)).failed == 0
    finish_run(session, run, RunStatus.COMPLETED)
    assert session.scalar(select(KeptRewards.next_seq)) == run.next_seq == 5
    assert len(read_rewards(session, run, FigureScope(run.id))) == 3


def test_runs_of_an_older_release_get_theirs_one_by_one(session: Session) -> None:
    runs = [make_run(session), make_run(session), make_run(session, status=RunStatus.RUNNING)]
    played = make_run(session, kind=RunKind.PLAY)
    for run in (*runs, played):
        make_rollouts(session, run, [[1, 1, 0]])
    make_run(session)  # without rollouts
    assert [keep_next_rewards(session) for _ in range(3)] == [True, True, False]
    assert set(session.scalars(select(KeptRewards.run_id))) == {run.id for run in runs[:2]}
    make_rollouts(session, runs[0], [[1, 1, 0]], phase=Phase.CHECK)
    assert keep_next_rewards(session)
    assert not keep_next_rewards(session)


def test_completed_rollouts_are_counted_from_what_is_kept_and_where_nothing_is(session: Session) -> None:
    runs = [make_run(session) for _ in range(3)]
    for run in runs[:2]:
        make_rollouts(session, run, [[1, 1, 0], [0, 1, 0], None])
        make_rollouts(session, run, [[1, 1, 0]], phase=Phase.CANARY)
    keep_rewards(session, runs[0])
    ids = [run.id for run in runs]
    assert count_completed(session, ids) == {run.id: 3 for run in runs[:2]}
    assert count_completed(session, ids, [Phase.EVALUATION]) == {run.id: 2 for run in runs[:2]}
    assert count_completed(session, []) == {}


@pytest.mark.parametrize("phase", [Phase.TRAIN, Phase.HELDOUT])
def test_reward_by_step_is_the_same_from_both(session: Session, phase: Phase) -> None:
    run = make_run(session, kind=RunKind.TRAINING)
    for step in (None, 0, 3):
        make_rollouts(session, run, random_rows(9, seed=4, failing=0.2), group_size=3, phase=phase, step=step)
    kept, stored = (
        sorted(map(tuple, read(session, run, phase, run.version_id, 0.1))) for read in (_kept_sums, _stored_sums)
    )
    assert np.array(kept) == pytest.approx(np.array(stored))
    assert len(kept) == 2


def test_they_leave_with_their_run(session: Session) -> None:
    run = make_run(session)
    make_rollouts(session, run, [[1, 1, 0]])
    keep_rewards(session, run)
    session.execute(text("DELETE FROM runs WHERE id = :run"), {"run": run.id})
    assert session.scalar(select(func.count()).select_from(KeptRewards)) == 0


def test_a_run_without_rollouts_keeps_empty_rewards(session: Session) -> None:
    run = make_run(session)
    keep_rewards(session, run)
    assert len(read_rewards(session, run, FigureScope(run.id))) == 0
    assert len(scores(session, side_of(session, run)).keys) == 0
    assert outcomes(session, FigureScope(run.id)).total == 0
    assert (
        scores(session, side_of(session, run)).place_of(uuid.uuid4(), scores(session, side_of(session, run)).keys)
        is None
    )
