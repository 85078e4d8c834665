"""The final figures of an evaluation, as they are kept in `Run.summary`."""

from dataclasses import asdict
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from backend.domain.environments.manifest import Manifest
from backend.domain.vocabulary import Phase, RolloutStatus
from backend.environments.tables import EnvironmentVersion
from backend.results.figures import (
    ColumnFigures,
    FigureScope,
    Outcomes,
    cheat_rate,
    column_figures,
    group_figures,
    outcomes,
    rule_of,
)
from backend.runs.tables import Run

_GROUPS = text("""
WITH spread AS (
    SELECT min(reward) AS low, max(reward) AS high, avg(reward) AS mean, count(*) AS members
    FROM rollouts WHERE run_id = :run AND phase = :phase AND status = 'completed' GROUP BY group_id
), middle AS (
    SELECT (min(low) + max(high)) / 2 AS reward FROM spread
)
SELECT count(*) AS groups,
       count(*) FILTER (WHERE high > low) AS mixed,
       count(*) FILTER (WHERE high = low AND mean >= middle.reward) AS all_good,
       count(*) FILTER (WHERE high = low AND mean < middle.reward) AS all_bad
FROM spread CROSS JOIN middle WHERE members > 1
""")


def summarize(session: Session, run: Run, *, seconds: float, played: int) -> dict[str, Any]:
    """`seconds` and `played` are of this attempt, for the rate; all else is of everything that is stored."""
    scope = FigureScope(run.id, Phase.EVALUATION)
    reward, *columns = column_figures(session, run, scope)
    found = outcomes(session, FigureScope(run.id))  # with impossible tasks, which are played and paid for too
    return {
        "reward": _figure(reward),
        "columns": {column.name: _figure(column) for column in columns},
        **_counts(found),
        **_success(session, run, scope),
        **_cheating(session, run),
        "groups": _groups(session, run),
        "seconds": round(seconds, 3),
        "rollouts_per_second": round(played / seconds, 3) if seconds > 0 else None,
    }


def _figure(figure: ColumnFigures) -> dict[str, Any] | None:
    if figure.estimate is None:
        return None
    levels = {str(level): asdict(estimate) for level, estimate in sorted(figure.by_level.items())}
    return {**asdict(figure.estimate), "levels": levels}


def _counts(found: Outcomes) -> dict[str, Any]:
    return {
        "rollouts": found.total,
        "completed": found.completed,
        "failed": found.failed,
        "cancelled": found.statuses.get(RolloutStatus.CANCELLED, 0),
        "stop_reasons": found.stop_reasons,
        "errors": {failure.kind: failure.count for failure in found.failures},
        "truncated": found.truncated,
        "turns": found.turns,
        "tokens_in": found.tokens_in,
        "tokens_out": found.tokens_out,
        "cost": found.cost,
        "priced": found.priced,
        "queue_seconds": round(found.queue_seconds, 3),
        "policy_seconds": round(found.policy_seconds, 3),
        "environment_seconds": round(found.environment_seconds, 3),
    }


def _success(session: Session, run: Run, scope: FigureScope) -> dict[str, Any]:
    """pass@k and pass^k under the rule that the manifest suggests."""
    version = session.get_one(EnvironmentVersion, run.version_id)
    rule = rule_of(run, Manifest.model_validate(version.manifest))
    passes = group_figures(session, run, scope, rule).passes
    return {
        "success": {"rule": rule.expression, **asdict(passes[0].any)} if passes else None,
        "passes": [{"k": at.k, "pass_at_k": at.any.mean, "pass_hat_k": at.all.mean} for at in passes],
    }


def _cheating(session: Session, run: Run) -> dict[str, Any]:
    """Impossible tasks that were passed; nothing where none were played."""
    version = session.get_one(EnvironmentVersion, run.version_id)
    share = cheat_rate(session, run, rule_of(run, Manifest.model_validate(version.manifest)))
    if share is None:
        return {}
    rate = {"rate": share.value, "low": share.low, "high": share.high}
    return {"cheat_rate": {**rate, "passed": share.found, "played": share.looked_at}}


def _groups(session: Session, run: Run) -> dict[str, Any] | None:
    """How many groups of several rollouts carry a signal; good and bad part in the middle of the rewards seen."""
    row = session.execute(_GROUPS, {"run": run.id, "phase": str(Phase.EVALUATION)}).one()
    if not row.groups:
        return None
    return {
        "count": row.groups,
        "mixed": row.mixed / row.groups,
        "all_good": row.all_good / row.groups,
        "all_bad": row.all_bad / row.groups,
    }
