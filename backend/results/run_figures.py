"""All figures of a run for its page, the JSON API and the command line; for several environments, also of each."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ConfigDict, Field
from sqlalchemy import text
from sqlalchemy.orm import Session

from backend.domain.described import described
from backend.domain.environments.manifest import Manifest
from backend.domain.environments.reward_bounds import RewardScale, reward_scale
from backend.domain.results.pass_at_k import REWARD, SuccessRule
from backend.domain.statistics import Coverage, Estimate, Proportion, wilson
from backend.domain.vocabulary import Phase, RunKind
from backend.environments.tables import EnvironmentVersion
from backend.operations.schemas import Request
from backend.results.figures import (
    ColumnFigures,
    GroupFigures,
    Outcomes,
    cheat_rate,
    column_figures,
    group_figures,
    outcomes,
    rule_of,
)
from backend.results.rewards import FigureScope, RunRewards, read_rewards
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
@described
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


@dataclass(slots=True, kw_only=True)
class ScopeFigures:
    """Reward columns, success and levels of a run, or of one of its environments."""

    rule: SuccessRule
    columns: Sequence[ColumnFigures]
    """The reward first."""
    groups: GroupFigures
    coverage: Coverage
    """Completed out of planned rollouts. One of several environments counts its stored rollouts instead."""
    cheat_rate: Proportion | None = None
    """Over the impossible tasks of the whole run, which other figures exclude; None without any."""
    scale: RewardScale | None = None
    """Floor and gold of the reward; None if one is unknown, or for a run on several environments."""

    @property
    def normalized(self) -> Estimate | None:
        """The mean reward as a share of the way from floor to gold."""
        return self.scale.estimate(self.columns[0].estimate) if self.scale else None

    @property
    def success(self) -> SuccessRate:
        return SuccessRate(self.rule, self.groups.success)

    @property
    def levels(self) -> list[LevelFigures]:
        """Empty for a run on several environments, whose levels are not comparable."""
        reward, success = self.columns[0].by_level, self.groups.by_level
        return [
            LevelFigures(level, reward.get(level), success.get(level), coverage)
            for level, coverage in self.groups.coverage.items()
        ]


@dataclass(slots=True, kw_only=True)
class EnvironmentFigures(ScopeFigures):
    """One environment of a run: its own columns with its own weights, its own levels and success rule."""

    name: str
    version: EnvironmentVersion


@dataclass(slots=True, kw_only=True)
class RunFigures(ScopeFigures):
    scope: FigureScope
    all: Outcomes
    """Counts the whole run."""
    scoped: Outcomes
    """Counts the scope; the same as `all` if the scope is the whole run."""
    messages: Sequence[FailureMessage] = ()
    environments: Sequence[EnvironmentFigures] = ()
    """One for each environment if there are several."""
    rollouts_per_second: float | None = None


_MESSAGES = text("""
SELECT coalesce(r.error_kind, 'unknown') AS kind, left(coalesce(r.error_message, ''), 400) AS message,
       count(*) AS amount, (array_agg(r.id ORDER BY r.seq))[1] AS rollout_id
FROM rollouts r WHERE r.run_id = :run AND r.status = 'failed'
GROUP BY 1, 2 ORDER BY amount DESC, kind, message LIMIT :most
""")


def run_figures(session: Session, run: Run, request: FiguresRequest) -> RunFigures:
    """Aggregate the rollouts of the requested scope."""
    figures, _ = figures_and_rewards(session, run, request)
    return figures


def figures_and_rewards(session: Session, run: Run, request: FiguresRequest) -> tuple[RunFigures, RunRewards]:
    """The figures, and the rewards that they are computed from: too large to keep."""
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
    rewards = read_rewards(session, run, scope)
    rule = rule_of(run, Manifest.model_validate(run.version.manifest), request.success, request.at_least)
    versions = versions_of(session, run)
    # Coverage is out of the planned rollouts, or out of the stored ones if their number is unknown or higher.
    stored, planned = (everything if run.kind is RunKind.EVALUATION else scoped), 0
    if scope.phase in {None, Phase.EVALUATION} and run.kind not in {RunKind.TRAINING, RunKind.CHECK, RunKind.PLAY}:
        amount = run.configuration.get("tasks"), run.configuration.get("group_size")
        if run.kind is RunKind.EVALUATION and all(isinstance(number, int) for number in amount):
            planned = int(amount[0] or 0) * int(amount[1] or 0)
        else:
            planned = int(run.progress.get("total") or 0)
    figures = RunFigures(
        scope=scope,
        rule=rule,
        all=everything,
        scoped=scoped,
        coverage=Coverage(stored.completed, max(planned, stored.total)),
        columns=[],
        rollouts_per_second=run.summary.get("rollouts_per_second"),
        groups=group_figures(run, rewards, rule),
    )
    if everything.failed:
        rows = session.execute(_MESSAGES, {"run": run.id, "most": MAX_MESSAGES})
        figures.messages = [FailureMessage(*row) for row in rows]
    canaries = read_rewards(session, run, FigureScope(run.id, Phase.CANARY)) if has_canaries else None
    if len(versions) == 1:
        figures.columns = column_figures(run, rewards)
        figures.scale = reward_scale(Manifest.model_validate(versions[0].manifest), run.columns, run.weights)
        figures.cheat_rate = cheat_rate(run, canaries, rule) if canaries else None
    else:
        _add_environments(run, figures, versions, rewards, canaries)
    return figures, rewards


def _add_environments(
    run: Run,
    figures: RunFigures,
    versions: Sequence[EnvironmentVersion],
    rewards: RunRewards,
    canaries: RunRewards | None,
) -> None:
    """Figures of each environment, and columns over the environments that have them: elsewhere they are stored as 0."""
    manifests = [Manifest.model_validate(version.manifest) for version in versions]
    weights = [{column.name: column.weight for column in manifest.columns} for manifest in manifests]
    owners = {
        name: tuple(version.id for version, own in zip(versions, weights, strict=True) if name == REWARD or name in own)
        for name in dict.fromkeys([REWARD, *run.columns, figures.rule.column])
    }
    parts = {each: rewards.of_versions(each) for each in dict.fromkeys(owners.values())}
    columns = {each: {column.name: column for column in column_figures(run, part)} for each, part in parts.items()}
    figures.columns = [columns[owners[name]][name] for name in [REWARD, *run.columns]]
    owned = group_figures(run, parts[owners[figures.rule.column]], figures.rule)
    figures.groups = GroupFigures(owned.passes, owned.success, shares=figures.groups.shares)
    environments = []
    for version, manifest, own, name in zip(versions, manifests, weights, names_of(versions), strict=True):
        rule, of_version = rule_of(run, manifest), rewards.of_versions([version.id])
        own_columns = []
        for column in column_figures(run, of_version):
            if column.name == REWARD or column.name in own:
                column.weight = own.get(column.name)
                own_columns.append(column)
        groups = group_figures(run, of_version, rule)
        counts = groups.coverage.values()
        environment = EnvironmentFigures(
            name=name,
            version=version,
            rule=rule,
            columns=own_columns,
            scale=reward_scale(manifest),
            groups=groups,
            coverage=Coverage(sum(each.completed for each in counts), sum(each.total for each in counts)),
        )
        if canaries:
            environment.cheat_rate = cheat_rate(run, canaries.of_versions([version.id]), rule)
        environments.append(environment)
    figures.environments = environments
    if rates := [each.cheat_rate for each in environments if each.cheat_rate]:
        figures.cheat_rate = wilson(sum(rate.found for rate in rates), sum(rate.looked_at for rate in rates))
