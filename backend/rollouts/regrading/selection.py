"""Which stored rollouts of a run are scored or played again."""

from sqlalchemy import ColumnElement
from sqlalchemy.orm import Session

from backend.domain.rollouts.regrading import RescorePlan
from backend.domain.vocabulary import Phase, RolloutStatus, RunKind
from backend.rollouts import queries as rollout_queries
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run


def conditions_of(session: Session, run: Run, plan: RescorePlan) -> list[ColumnElement[bool]]:
    """Conditions on `Rollout`: completed and failed ones of the run, or the part that the plan names."""
    conditions: list[ColumnElement[bool]] = [
        Rollout.run_id == run.id,
        Rollout.status.in_([RolloutStatus.COMPLETED, RolloutStatus.FAILED]),
    ]
    if phase := phase_of(run, plan):
        conditions.append(Rollout.phase == phase)
    elif not plan.rollout_ids:
        conditions.append(Rollout.phase != Phase.CANARY)  # a copy counts as an evaluation's
    if plan.rollout_ids:
        conditions.append(Rollout.id.in_(plan.rollout_ids))
    if plan.where:
        conditions.append(Rollout.id.in_(rollout_queries.matching(session, run, plan.where)))
    return conditions


def phase_of(run: Run, plan: RescorePlan) -> Phase | None:
    """One phase of a training run, its held-out examinations unless chosen otherwise: copies of two would collide."""
    if run.kind is RunKind.TRAINING:
        return plan.phase or Phase.HELDOUT
    return plan.phase
