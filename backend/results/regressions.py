"""Evaluations that earn significantly less than the one before: for the overview, and for notices."""

import uuid
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Float, and_, cast, func, or_, select
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.domain.notifications.notices import NoticeKind
from backend.domain.statistics import Estimate
from backend.domain.vocabulary import RunKind, RunStatus
from backend.environments.tables import Environment, EnvironmentVersion
from backend.notifications import outbox
from backend.operations.schemas import Response
from backend.policies.tables import Policy
from backend.results.paired import paired_differences
from backend.runs.tables import Run

FEWEST_TASKS = 8
"""With fewer shared tasks nothing is reported: one unlucky task decides."""
LOOK_BACK = timedelta(days=90)
"""Age of evaluations with which later ones are compared."""
MAX_COMPARED = 40
"""Evaluations with a lower mean than the one before that are paired with it, the largest drops first."""


class EvaluationRegression(Response):
    """An evaluation that is worse than the one before on the same tasks: the interval excludes 0."""

    environment: str
    policy: str
    cause: str
    """What changed: `environment version`, `checkpoint`, or `nothing known`."""
    before: str
    """The version or checkpoint before, and after; empty if none changed."""
    after: str
    before_run_id: uuid.UUID
    run_id: uuid.UUID
    difference: Estimate
    at: datetime


def find_regressions(
    session: Session, since: datetime, *where: ColumnElement[bool]
) -> tuple[list[EvaluationRegression], int]:
    """Return evaluations that ended since then and are worse than the one before, and the number of compared ones.

    The one before is the last that ended in the same project, of the same policy, environment, tasks, sampling and
    weights. It must have been of the same checkpoint, or of an earlier one: an older checkpoint is no regression.
    `where` limits the runs on both sides.
    """
    reward = Run.summary["reward"]["mean"]
    plan = [Run.configuration[name].as_string() for name in ("split", "tasks", "first_task", "group_size")]
    sampling = [Run.configuration["sampling"][name].as_string() for name in ("temperature", "max_tokens_per_turn")]
    chosen = Run.configuration["task_indexes"].as_string()
    columns = {
        "id": Run.id,
        "ended_at": Run.ended_at,
        "version": EnvironmentVersion.number,
        "checkpoint_id": Run.checkpoint_id,
        "checkpoint_at": Checkpoint.created_at,
        "checkpoint": func.concat(Checkpoint.stage, " ", Checkpoint.step),
        "reward": cast(cast(reward, JSONB), Float),
    }
    owner = Run.project_id, Run.policy_id, EnvironmentVersion.environment_id
    same = (*owner, Run.weights, *plan, *sampling, chosen)
    evaluations = (
        select(
            Environment.name.label("environment"),
            Policy.name.label("policy"),
            *(column.label(name) for name, column in columns.items()),
            *(
                func.lag(column).over(partition_by=same, order_by=(Run.ended_at, Run.id)).label(f"{name}_before")
                for name, column in columns.items()
            ),
        )
        .join(EnvironmentVersion, EnvironmentVersion.id == Run.version_id)
        .join(Environment, Environment.id == EnvironmentVersion.environment_id)
        .join(Policy, Policy.id == Run.policy_id)
        .outerjoin(Checkpoint, Checkpoint.id == Run.checkpoint_id)
        .where(
            Run.kind == RunKind.EVALUATION,
            Run.status == RunStatus.COMPLETED,
            Run.ended_at >= since - LOOK_BACK,
            func.jsonb_typeof(reward) == "number",
            *where,
        )
        .subquery()
    )
    c = evaluations.c
    is_later = or_(c.checkpoint_id == c.checkpoint_id_before, c.checkpoint_at >= c.checkpoint_at_before)
    is_comparable = or_(and_(c.checkpoint_id.is_(None), c.checkpoint_id_before.is_(None)), is_later)
    pairs = (
        select(evaluations, func.count().over().label("compared"))
        .where(c.ended_at >= since, c.ended_at_before >= c.ended_at - LOOK_BACK, is_comparable)
        .order_by(c.reward - c.reward_before)
        .limit(MAX_COMPARED)
    )
    rows = session.execute(pairs).all()
    lower = [row for row in rows if row.reward < row.reward_before]
    found = []
    for row, difference in zip(lower, paired_differences(session, [(r.id_before, r.id) for r in lower]), strict=True):
        if difference is None or difference.count < FEWEST_TASKS or difference.high >= 0:
            continue
        before, after, cause = "", "", "nothing known"
        if row.version != row.version_before:
            before, after, cause = f"v{row.version_before}", f"v{row.version}", "environment version"
        elif row.checkpoint != row.checkpoint_before:
            before, after, cause = row.checkpoint_before, row.checkpoint, "checkpoint"
        found.append(
            EvaluationRegression.from_row(
                row,
                cause=cause,
                before=before,
                after=after,
                before_run_id=row.id_before,
                run_id=row.id,
                difference=difference,
                at=row.ended_at,
            )
        )
    return found, rows[0].compared if rows else 0


def announce_regression(session: Session, run: Run) -> bool:
    """Announce that a completed evaluation is worse than the one before, and return whether it is."""
    if run.kind is not RunKind.EVALUATION or run.policy_id is None or run.ended_at is None:
        return False
    of_policy = Run.policy_id == run.policy_id, Run.project_id == run.project_id
    found, _ = find_regressions(session, run.ended_at, *of_policy)
    regression = next((each for each in found if each.run_id == run.id), None)
    if regression is None:
        return False
    before, difference = session.get_one(Run, regression.before_run_id), regression.difference
    change = f" Since then its {regression.cause} changed from {regression.before} to {regression.after}."
    outbox.announce(
        session,
        kind=NoticeKind.REGRESSION,
        title=f"{run.name} earns less than {before.name}",
        text=f"The reward of {regression.policy} in {regression.environment} changed by {difference.mean:+.3f} on "
        f"{difference.count} shared tasks, 95% interval {difference.low:+.3f} to {difference.high:+.3f}."
        + (change if regression.before else ""),
        path=f"/compare?run={before.id}&run={run.id}",
        run_id=run.id,
        evidence={"before": str(before.id), "after": str(run.id), "tasks": difference.count},
    )
    return True
