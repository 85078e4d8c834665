"""Notify members if a policy earns significantly less than in its last evaluation on the same tasks."""

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from backend.domain.notifications.notices import NoticeKind
from backend.domain.vocabulary import RunKind, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.notifications import outbox
from backend.results.comparison import compare
from backend.results.scores import ComparedRun
from backend.runs.tables import Run

FEWEST_TASKS = 8
"""With fewer shared tasks nothing is reported: one unlucky task decides."""


def announce_regression(session: Session, run: Run) -> bool:
    """Compare a completed evaluation with the last one of the same policy, checkpoint and environment, paired by task
    and seed. Announces a regression, and returns whether there is one."""
    if run.kind is not RunKind.EVALUATION or run.status is not RunStatus.COMPLETED or run.policy_id is None:
        return False
    loaded = (
        joinedload(Run.version).joinedload(EnvironmentVersion.environment),
        joinedload(Run.policy),
        joinedload(Run.checkpoint),
    )
    same = Run.policy_id == run.policy_id, Run.checkpoint_id.is_not_distinct_from(run.checkpoint_id)
    environment = select(EnvironmentVersion.environment_id).where(EnvironmentVersion.id == run.version_id)
    earlier = (
        select(Run)
        .options(*loaded)
        .join(EnvironmentVersion, EnvironmentVersion.id == Run.version_id)
        .where(*same, EnvironmentVersion.environment_id == environment.scalar_subquery(), Run.id != run.id)
        .where(Run.kind == RunKind.EVALUATION, Run.status == RunStatus.COMPLETED, Run.project_id == run.project_id)
        .where(Run.created_at < run.created_at, Run.configuration["split"].astext == run.configuration.get("split"))
        .order_by(Run.created_at.desc())
        .limit(1)
    )
    before = session.scalar(earlier)
    if before is None:
        return False
    run = session.scalars(select(Run).options(*loaded).where(Run.id == run.id)).one()
    found = compare(session, [ComparedRun(before, None), ComparedRun(run, None)])
    if not found.pairings or len(found.shared) < FEWEST_TASKS or found.pairings[0].verdict != "worse":
        return False
    reward = found.pairings[0].reward
    outbox.announce(
        session,
        kind=NoticeKind.REGRESSION,
        title=f"{run.name} earns less than {before.name}",
        text=f"The reward fell from {reward.before.mean:.3f} to {reward.after.mean:.3f} on {len(found.shared)} shared "
        f"tasks: {reward.difference.mean:+.3f}, 95% interval {reward.difference.low:+.3f} to "
        f"{reward.difference.high:+.3f}.",
        path=f"/compare?run={before.id}&run={run.id}",
        run_id=run.id,
        evidence={"before": str(before.id), "after": str(run.id), "tasks": len(found.shared)},
    )
    return True
