"""All figures of a run for its page, the JSON API and the command line; for several environments, also of each."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pydantic import ConfigDict, Field
from sqlalchemy import text
from sqlalchemy.orm import Session

from backend.domain.environments.manifest import Manifest
from backend.domain.results.pass_at_k import REWARD, SuccessRule
from backend.domain.review.judged_curve import Share, wilson
from backend.domain.statistics import Coverage, Estimate
from backend.domain.vocabulary import Phase, RunKind
from backend.environments.tables import EnvironmentVersion
from backend.operations.schemas import Request
from backend.results.figures import (
    ColumnFigures,
    FigureScope,
    GroupFigures,
    Outcomes,
    cheat_rate,
    column_figures,
    group_figures,
    outcomes,
    rule_of,
)
from backend.runs.queries import names_of, versions_of
from backend.runs.tables import Run

MAX_MESSAGES = 12
"""Different failure messages."""


class FiguresRequest(Request):
    """The rollouts to aggregate, and the success rule."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    phase: Phase | None = Field(None, description="Training runs only. Default: the latest held-out evaluation.")
    step: int | None = Field(None, description="Training runs only. Default: the latest step of the phase.")
    success: str | None = Field(
        None, description="Reward column, or `reward`, that decides success. Default: the manifest's rule."
    )
    at_least: float | None = Field(None, description="Lowest value that counts as success. Default: the highest.")


@dataclass(frozen=True, slots=True)
class FailureMessage:
    """One message of failed rollouts."""

    kind: str
    message: str
    count: int
    rollout_id: uuid.UUID
    """The first rollout with this message."""


@dataclass(frozen=True, slots=True)
class LevelFigures:
    """Reward and success over the tasks of one level."""

    level: int
    reward: Estimate | None
    success: Estimate | None
    coverage: Coverage


@dataclass(frozen=True, slots=True)
class SuccessRate:
    """A success rule with the success rate over tasks."""

    rule: SuccessRule
    rate: Estimate | None


@dataclass(frozen=True, slots=True)
class EnvironmentFigures:
    """One environment of a run: its own columns with its own weights, its own levels and success rule."""

    name: str
    version: EnvironmentVersion
    rule: SuccessRule
    columns: Sequence[ColumnFigures]
    """The reward first."""
    groups: GroupFigures
    cheat_rate: Share | None = None
    """Over the whole run; None without impossible tasks of this environment."""

    @property
    def success(self) -> SuccessRate:
        return SuccessRate(self.rule, self.groups.success)

    @property
    def levels(self) -> list[LevelFigures]:
        return _levels(self.columns[0], self.groups)

    @property
    def coverage(self) -> Coverage:
        """Coverage of the stored rollouts."""
        by_level = self.groups.coverage.values()
        return Coverage(sum(each.completed for each in by_level), sum(each.total for each in by_level))


@dataclass(slots=True)
class RunFigures:
    """The figures of a scope."""

    scope: FigureScope
    rule: SuccessRule
    all: Outcomes
    """Counts the whole run."""
    scoped: Outcomes
    """Counts the scope; the same as `all` if the scope is the whole run."""
    coverage: Coverage
    columns: list[ColumnFigures]
    """The reward first."""
    groups: GroupFigures
    messages: Sequence[FailureMessage] = field(default_factory=list)
    cheat_rate: Share | None = None
    """Over the impossible tasks of the whole run. Other figures exclude them."""
    environments: Sequence[EnvironmentFigures] = ()
    """One for each environment if there are several."""
    rollouts_per_second: float | None = None

    @property
    def success(self) -> SuccessRate:
        return SuccessRate(self.rule, self.groups.success)

    @property
    def levels(self) -> list[LevelFigures]:
        """Empty for several environments, whose levels are not comparable."""
        return [] if self.environments else _levels(self.columns[0], self.groups)


def _levels(reward: ColumnFigures, groups: GroupFigures) -> list[LevelFigures]:
    return [
        LevelFigures(level, reward.by_level.get(level), groups.by_level.get(level), coverage)
        for level, coverage in groups.coverage.items()
    ]


_MESSAGES = text("""
SELECT coalesce(r.error_kind, 'unknown') AS kind, left(coalesce(r.error_message, ''), 400) AS message,
       count(*) AS amount, (array_agg(r.id ORDER BY r.seq))[1] AS rollout_id
FROM rollouts r WHERE r.run_id = :run AND r.status = 'failed'
GROUP BY 1, 2 ORDER BY amount DESC, kind, message LIMIT :most
""")


def run_figures(session: Session, run: Run, request: FiguresRequest) -> RunFigures:
    """Read and aggregate everything. A run of 100,000 rollouts takes about half a second."""
    everything = outcomes(session, FigureScope(run.id))
    has_canaries = Phase.CANARY in everything.phases
    phase, step = request.phase, request.step
    if run.kind is not RunKind.TRAINING:  # everything but impossible tasks
        scope = FigureScope(run.id, phase or Phase.EVALUATION) if has_canaries else FigureScope(run.id)
    else:
        if phase is None:
            phases = (Phase.HELDOUT, Phase.TRAIN, Phase.WARM_UP)
            phase = next((each for each in phases if each in everything.phases), None)
        scope = FigureScope(run.id, phase, step if step is not None else everything.latest.get(phase or ""))
    scoped = everything if scope.phase is None else outcomes(session, scope)
    rule = rule_of(run, Manifest.model_validate(run.version.manifest), request.success, request.at_least)
    versions = versions_of(session, run)
    figures = RunFigures(
        scope=scope,
        rule=rule,
        all=everything,
        scoped=scoped,
        coverage=_coverage(run, everything if run.kind is RunKind.EVALUATION else scoped, scope),
        columns=[],
        rollouts_per_second=run.summary.get("rollouts_per_second"),
        groups=group_figures(session, run, scope, rule),
    )
    if everything.failed:
        rows = session.execute(_MESSAGES, {"run": run.id, "most": MAX_MESSAGES})
        figures.messages = [FailureMessage(row.kind, row.message, row.amount, row.rollout_id) for row in rows]
    if len(versions) == 1:
        figures.columns = column_figures(session, run, scope)
        figures.cheat_rate = cheat_rate(session, run, rule) if has_canaries else None
    else:
        _add_environments(session, run, figures, versions, has_canaries=has_canaries)
    return figures


def _add_environments(
    session: Session, run: Run, figures: RunFigures, versions: Sequence[EnvironmentVersion], *, has_canaries: bool
) -> None:
    """Figures of each environment, and columns over the environments that have them: elsewhere they are stored as 0."""
    scope = figures.scope
    manifests = [Manifest.model_validate(version.manifest) for version in versions]
    weights = [{column.name: column.weight for column in manifest.columns} for manifest in manifests]

    def owners(column: str) -> FigureScope:
        with_column = zip(versions, weights, strict=True)
        ids = tuple(version.id for version, own in with_column if column == REWARD or column in own)
        return replace(scope, version_ids=ids)

    scopes = {name: owners(name) for name in [REWARD, *run.columns]}
    columns = {
        each: {column.name: column for column in column_figures(session, run, each)}
        for each in dict.fromkeys(scopes.values())
    }
    figures.columns = [columns[owned][name] for name, owned in scopes.items()]
    figures.groups = replace(
        figures.groups, passes=group_figures(session, run, owners(figures.rule.column), figures.rule).passes
    )
    environments = []
    for version, manifest, own, name in zip(versions, manifests, weights, names_of(versions), strict=True):
        rule, of_version = rule_of(run, manifest), replace(scope, version_ids=(version.id,))
        own_columns = []
        for column in column_figures(session, run, of_version):
            if column.name == REWARD or column.name in own:
                column.weight = own.get(column.name)
                own_columns.append(column)
        rate = cheat_rate(session, run, rule, version.id) if has_canaries else None
        groups = group_figures(session, run, of_version, rule)
        environments.append(EnvironmentFigures(name, version, rule, own_columns, groups, rate))
    figures.environments = environments
    if rates := [each.cheat_rate for each in environments if each.cheat_rate]:
        figures.cheat_rate = wilson(sum(rate.found for rate in rates), sum(rate.looked_at for rate in rates))


def _coverage(run: Run, stored: Outcomes, scope: FigureScope) -> Coverage:
    """Completed rollouts out of the planned ones, or out of the stored ones if their number is unknown or higher."""
    planned = 0
    if scope.phase in {None, Phase.EVALUATION} and run.kind not in {RunKind.TRAINING, RunKind.CHECK, RunKind.PLAY}:
        amount = run.configuration.get("tasks"), run.configuration.get("group_size")
        if run.kind is RunKind.EVALUATION and all(isinstance(number, int) for number in amount):
            planned = int(amount[0] or 0) * int(amount[1] or 0)
        else:
            planned = int(run.progress.get("total") or 0)
    return Coverage(stored.completed, max(planned, stored.total))
