"""Sweeps without training: their runs get checkpoints and end as a worker would write them."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.domain.vocabulary import Role, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.policies.tables import Policy
from backend.runs.service import begin_run, finish_run
from backend.runs.tables import Run
from backend.sweeps.launch import start_sweep
from backend.sweeps.schemas import StartSweep
from backend.sweeps.tables import Sweep, SweepTrial
from backend.web.audit import Requester
from tests.factories import make_checkpoint, make_environment_version, make_member
from workers.tasks.sweeps import advance

REASON = "A test of sweeps; nothing will be kept."
RATES = {"grpo.learning_rate": {"low": 1e-5, "high": 1e-3, "log": True}}


def make_sweep(
    session: Session,
    parameters: Mapping[str, Any] | None = None,
    *,
    actor: Requester | None = None,
    version: EnvironmentVersion | None = None,
    **request: Any,
) -> Sweep:
    version = version or make_environment_version(session)
    given = {"configuration": {"grpo": {"steps": 40}}, "without_certificate": REASON, "name": "rates", **request}
    asked = StartSweep.model_validate({"version_id": version.id, "parameters": parameters or RATES, **given})
    return start_sweep(session, actor or make_member(session, Role.TRAINER), asked)


def trials_of(session: Session, sweep: Sweep) -> Sequence[SweepTrial]:
    return session.scalars(select(SweepTrial).where(SweepTrial.sweep_id == sweep.id).order_by(SweepTrial.number)).all()


def run_of(session: Session, trial: SweepTrial) -> Run:
    assert trial.run_id is not None
    return session.get_one(Run, trial.run_id)


def evaluate(session: Session, trial: SweepTrial, rewards: Mapping[int, float]) -> Run:
    """Let the run train, with held-out results of its checkpoints by step."""
    run = run_of(session, trial)
    if run.status is RunStatus.QUEUED:
        begin_run(session, run)
    policy = session.get_one(Policy, run.policy_id)
    for step, reward in rewards.items():
        heldout = {"reward": {"mean": reward, "low": reward - 0.1, "high": reward + 0.1, "count": 100}}
        make_checkpoint(session, policy, run, stage="grpo", step=step, heldout_reward=reward, heldout=heldout)
    own = session.scalars(select(Checkpoint).where(Checkpoint.run_id == run.id)).all()
    best = max((row.heldout_reward or 0.0 for row in own), default=None)
    for row in own:
        row.is_best = row.heldout_reward == best
    session.flush()
    return run


def complete(session: Session, sweep: Sweep, number: int, *rewards: float, every: int = 20) -> None:
    """Let a trial's run end with these held-out rewards, and the sweep notice it."""
    trial = trials_of(session, sweep)[number - 1]
    run = evaluate(session, trial, {every * place: reward for place, reward in enumerate(rewards, 1)})
    finish_run(session, run, RunStatus.COMPLETED)
    advance(session, sweep)
