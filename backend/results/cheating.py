"""How often impossible tasks were passed in a run: no figure of quality, but the share of cheating."""

import uuid
from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.domain.environments.manifest import Manifest
from backend.domain.results.pass_at_k import REWARD, SuccessRule
from backend.domain.review.judged_curve import Share, wilson
from backend.domain.statistics import TIE
from backend.domain.vocabulary import Phase, RolloutStatus
from backend.environments.tables import EnvironmentVersion
from backend.results.success_rules import rule_of
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.tables import Run


def cheat_rates(session: Session, run: Run, versions: Sequence[EnvironmentVersion]) -> dict[uuid.UUID, Share]:
    """By version, of a run on several environments: each by its own rule of success. Without those that have none."""
    rules = {version.id: rule_of(run, Manifest.model_validate(version.manifest)) for version in versions}
    found = {version_id: cheat_rate(session, run, rule, version_id) for version_id, rule in rules.items()}
    return {version_id: share for version_id, share in found.items() if share is not None}


def in_total(rates: Sequence[Share]) -> Share | None:
    return wilson(sum(each.found for each in rates), sum(each.looked_at for each in rates)) if rates else None


def cheat_rate(session: Session, run: Run, rule: SuccessRule, version_id: uuid.UUID | None = None) -> Share | None:
    """Of the run's completed canaries (of one environment version), those that passed by the rule, with Wilson's 95 %
    limits. None: it has none."""
    column = None if rule.column == REWARD else run.columns.index(rule.column) + 1
    value = Rollout.reward if column is None else Rollout.columns[column]
    statement = select(func.count(), func.count().filter(value >= rule.at_least - TIE)).where(
        Rollout.run_id == run.id, Rollout.phase == Phase.CANARY, Rollout.status == RolloutStatus.COMPLETED
    )
    if version_id is not None:
        statement = statement.join(Group, Group.id == Rollout.group_id).join(Task, Task.id == Group.task_id)
        statement = statement.where(Task.version_id == version_id)
    played, passed = session.execute(statement).one()
    return wilson(passed, played) if played else None
