"""Trials of a sweep: bring their rows up to date with their runs, and read them for the search."""

import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from backend.checkpoints.tables import Checkpoint
from backend.domain.sweeps.sweep import TrialState, state_of
from backend.domain.training.configuration import STEPPED, Stage, TrainingConfiguration
from backend.domain.vocabulary import RunStatus
from backend.sweeps.tables import Sweep, SweepTrial
from workers.sweeps.search import HeldoutReward, TrialRecord


def refresh_trials(session: Session, sweep: Sweep) -> list[SweepTrial]:
    """Return all trials in the order of their numbers, with their runs, after taking over what the runs did since.

    A run that is purged leaves the last known state.
    """
    statement = select(SweepTrial).options(joinedload(SweepTrial.run)).where(SweepTrial.sweep_id == sweep.id)
    trials = list(session.scalars(statement.order_by(SweepTrial.number).execution_options(populate_existing=True)))
    best = _best_checkpoints(session, [trial.run_id for trial in trials if trial.run_id])
    for trial in trials:
        run = trial.run
        if run is None:
            if trial.state is TrialState.RUNNING:
                trial.state, trial.reason, trial.ended_at = TrialState.FAILED, "Its run was deleted.", datetime.now(UTC)
            continue
        trial.state = state_of(run.status, is_pruned=trial.is_pruned)
        trial.ended_at = run.ended_at if trial.state.is_over else None
        if trial.state is TrialState.PRUNED and run.status is RunStatus.STOPPED:
            run.reason = trial.reason  # the page of the run shows why it was stopped
        elif trial.state in {TrialState.FAILED, TrialState.STOPPED}:
            trial.reason = trial.reason or run.reason
        elif not trial.is_pruned:
            trial.reason = None
        if found := best.get(run.id):
            trial.step, trial.reward, interval = found
            trial.low, trial.high = interval.get("low"), interval.get("high")
    session.flush()
    return trials


def trial_records(session: Session, trials: Sequence[SweepTrial]) -> list[TrialRecord]:
    """The trials for the search, with the rewards of their held-out evaluations."""
    statement = select(Checkpoint.run_id, Checkpoint.step, Checkpoint.heldout_reward, Checkpoint.created_at).where(
        Checkpoint.run_id.in_([trial.run_id for trial in trials if trial.run_id]),
        Checkpoint.stage.in_(STEPPED),
    )
    rewards: defaultdict[uuid.UUID, dict[int, HeldoutReward]] = defaultdict(dict)
    for run_id, step, reward, at in session.execute(statement.order_by(Checkpoint.step)):
        if run_id is not None and reward is not None:
            rewards[run_id][step] = HeldoutReward(step, reward, at)
    records = []
    for trial in trials:
        points = list(rewards[trial.run_id].values()) if trial.run_id else []
        if points:
            trial.last_step = points[-1].step
        records.append(TrialRecord(trial.number, trial.values, trial.state, trial.reward, points))
    return records


def spent(trials: Sequence[SweepTrial]) -> tuple[int, float]:
    """Training steps and hours of all runs. Runs in progress count with all of their steps."""
    steps, seconds = 0, 0.0
    for trial in trials:
        if (run := trial.run) is None:
            continue
        configuration = TrainingConfiguration.of_run(run.configuration)
        if trial.state in {TrialState.RUNNING, TrialState.COMPLETED}:
            steps += configuration.total_steps
        else:
            steps += (trial.last_step or 0) + (configuration.sft.steps if configuration.recipe.has_sft else 0)
        if run.started_at:
            seconds += ((run.ended_at or datetime.now(UTC)) - run.started_at).total_seconds()
    return steps, seconds / 3600


def _best_checkpoints(
    session: Session, run_ids: Sequence[uuid.UUID]
) -> Mapping[uuid.UUID, tuple[int, float, Mapping[str, Any]]]:
    """Step, held-out reward and interval of the best checkpoint that each run trained."""
    statement = select(
        Checkpoint.run_id, Checkpoint.step, Checkpoint.heldout_reward, Checkpoint.heldout["reward"]
    ).where(
        Checkpoint.run_id.in_(run_ids),
        Checkpoint.stage != Stage.UNTRAINED,
        Checkpoint.heldout_reward.is_not(None),
    )
    order = Checkpoint.is_best.desc(), Checkpoint.heldout_reward.desc(), Checkpoint.step
    found: dict[uuid.UUID, tuple[int, float, Mapping[str, Any]]] = {}
    for run_id, step, reward, interval in session.execute(statement.order_by(*order)):
        found.setdefault(run_id, (step, reward, interval if isinstance(interval, dict) else {}))
    return found
