"""What the rollouts of a run on several environments amount to in each of them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from backend.domain.environments.manifest import Manifest
from backend.domain.results.pass_at_k import SuccessRule
from backend.domain.review.judged_curve import Share
from backend.domain.statistics import Coverage, Estimate
from backend.environments.tables import EnvironmentVersion
from backend.results.figures import REWARD, ColumnFigures, Scope, column_figures
from backend.results.group_figures import GroupFigures, group_figures
from backend.results.success_rules import rule_of
from backend.runs.mixes import names_of
from backend.runs.tables import Run


@dataclass(frozen=True, slots=True)
class LevelFigures:
    """One level: its reward and success over tasks."""

    level: int
    reward: Estimate | None
    success: Estimate | None
    coverage: Coverage


@dataclass(frozen=True, slots=True)
class EnvironmentFigures:
    """One environment: its own columns with its own weights, its own levels, success by its own rule."""

    name: str
    version: EnvironmentVersion
    rule: SuccessRule
    columns: Sequence[ColumnFigures]
    """The reward first."""
    groups: GroupFigures
    cheat_rate: Share | None = None
    """Of the whole run, where it played impossible tasks of this environment."""

    @property
    def levels(self) -> list[LevelFigures]:
        return levels_of(self.columns[0], self.groups)

    @property
    def coverage(self) -> Coverage:
        """Of the stored rollouts."""
        found = self.groups.coverage.values()
        return Coverage(sum(each.completed for each in found), sum(each.total for each in found))


def levels_of(reward: ColumnFigures, groups: GroupFigures) -> list[LevelFigures]:
    return [
        LevelFigures(level, reward.by_level.get(level), groups.by_level.get(level), coverage)
        for level, coverage in groups.coverage.items()
    ]


def environment_figures(
    session: Session,
    run: Run,
    scope: Scope,
    versions: Sequence[EnvironmentVersion],
    cheat_rates: Mapping[uuid.UUID, Share],
) -> list[EnvironmentFigures]:
    """In the order of the mix; empty where there is one environment. Cheat rates by version."""
    if len(versions) == 1:
        return []
    found = [
        _of_environment(session, run, replace(scope, version_ids=(version.id,)), version, name)
        for version, name in zip(versions, names_of(versions), strict=True)
    ]
    return [replace(each, cheat_rate=cheat_rates.get(each.version.id)) for each in found]


def mixed_columns(
    session: Session, run: Run, scope: Scope, versions: Sequence[EnvironmentVersion]
) -> list[ColumnFigures]:
    """Each column over the tasks of the environments that have it: elsewhere it counts nothing, and is stored as 0."""
    if len(versions) == 1:
        return column_figures(session, run, scope)
    owners = {name: _owners(name, versions) for name in [REWARD, *run.columns]}
    found = {
        some: {each.name: each for each in column_figures(session, run, replace(scope, version_ids=some))}
        for some in dict.fromkeys(owners.values())
    }
    return [found[some][name] for name, some in owners.items()]


def mixed_groups(
    session: Session, run: Run, scope: Scope, versions: Sequence[EnvironmentVersion], rule: SuccessRule
) -> GroupFigures:
    """Of all groups; success only in the environments that have the rule's column."""
    found = group_figures(session, run, scope, rule)
    if len(versions) == 1:
        return found
    own = replace(scope, version_ids=_owners(rule.column, versions))
    return replace(found, passes=group_figures(session, run, own, rule).passes)


def _owners(column: str, versions: Sequence[EnvironmentVersion]) -> tuple[uuid.UUID, ...]:
    return tuple(version.id for version in versions if column == REWARD or column in _weights(version))


def _of_environment(
    session: Session, run: Run, scope: Scope, version: EnvironmentVersion, name: str
) -> EnvironmentFigures:
    weights = _weights(version)
    rule = rule_of(run, Manifest.model_validate(version.manifest))
    columns = [each for each in column_figures(session, run, scope) if each.name == REWARD or each.name in weights]
    for column in columns:
        column.weight = weights.get(column.name)
    return EnvironmentFigures(name, version, rule, columns, group_figures(session, run, scope, rule))


def _weights(version: EnvironmentVersion) -> dict[str, float]:
    return {column.name: column.weight for column in Manifest.model_validate(version.manifest).columns}
