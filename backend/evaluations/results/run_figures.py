"""All figures of a run in one place: what its page, the JSON API and the command line show."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict
from sqlalchemy import text
from sqlalchemy.orm import Session

from backend.db.models import Run
from backend.domain.manifest import Manifest
from backend.domain.passes import REWARD, SuccessRule, default_rule
from backend.domain.statistics import Coverage, Estimate
from backend.domain.vocabulary import Phase, RunKind
from backend.evaluations.results.figures import ColumnFigures, Outcomes, Scope, column_figures, outcomes
from backend.evaluations.results.group_figures import GroupFigures, group_figures

MOST_MESSAGES = 12
"""Different failures that are told."""


class FiguresChoice(BaseModel):
    """Which rollouts the figures are about, and what counts as success."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    phase: Phase | None = None
    """Of a training run; left out: its newest held-out examination."""
    step: int | None = None
    success: str | None = None
    """The reward column (or `reward`) that decides; left out: what the manifest suggests."""
    at_least: float | None = None
    """From which value on."""


@dataclass(frozen=True, slots=True)
class FailureMessage:
    """One message of failed rollouts."""

    kind: str
    message: str
    count: int
    rollout_id: uuid.UUID
    """The first with it."""


@dataclass(frozen=True, slots=True)
class LevelFigures:
    """One level: its reward and success over tasks."""

    level: int
    reward: Estimate | None
    success: Estimate | None
    coverage: Coverage


@dataclass(slots=True)
class RunFigures:
    """What the rollouts of a scope amount to."""

    scope: Scope
    rule: SuccessRule
    all: Outcomes
    """Of the whole run."""
    scoped: Outcomes
    """Of the scope; the same as `all` where that is everything."""
    coverage: Coverage
    columns: list[ColumnFigures]
    """The reward first."""
    groups: GroupFigures
    messages: Sequence[FailureMessage] = field(default_factory=list)

    @property
    def levels(self) -> list[LevelFigures]:
        found = self.groups
        return [
            LevelFigures(level, self.columns[0].by_level.get(level), found.by_level.get(level), coverage)
            for level, coverage in found.coverage.items()
        ]


_MESSAGES = text("""
SELECT coalesce(r.error_kind, 'unknown') AS kind, left(coalesce(r.error_message, ''), 400) AS message,
       count(*) AS amount, (array_agg(r.id ORDER BY r.seq))[1] AS rollout_id
FROM rollouts r WHERE r.run_id = :run AND r.status = 'failed'
GROUP BY 1, 2 ORDER BY amount DESC, kind, message LIMIT :most
""")


def run_figures(session: Session, run: Run, choice: FiguresChoice) -> RunFigures:
    """Read and fold everything; a run of 100,000 rollouts takes about half a second."""
    everything = outcomes(session, Scope(run.id))
    scope = _scope(run, everything, choice)
    scoped = everything if scope.phase is None else outcomes(session, scope)
    rule = rule_of(run, Manifest.model_validate(run.version.manifest), choice.success, choice.at_least)
    return RunFigures(
        scope=scope,
        rule=rule,
        all=everything,
        scoped=scoped,
        coverage=coverage_of(run, scoped, scope),
        columns=column_figures(session, run, scope),
        groups=group_figures(session, run, scope, rule),
        messages=_messages(session, run) if everything.failed else (),
    )


def coverage_of(run: Run, found: Outcomes, scope: Scope) -> Coverage:
    """Completed rollouts of what the run was to play, or of what is stored where that is unknown or more."""
    planned = planned_rollouts(run) if scope.phase in {None, Phase.EVALUATION} else 0
    return Coverage(found.completed, max(planned, found.total))


def planned_rollouts(run: Run) -> int:
    """How many rollouts the run was to have; 0 where nobody said."""
    if run.kind in {RunKind.TRAINING, RunKind.CHECK, RunKind.PLAY}:
        return 0
    asked = run.configuration.get("tasks"), run.configuration.get("group_size")
    if run.kind is RunKind.EVALUATION and all(isinstance(number, int) for number in asked):
        return int(asked[0] or 0) * int(asked[1] or 0)
    return int(run.progress.get("total") or 0)


def rule_of(run: Run, manifest: Manifest, column: str | None = None, at_least: float | None = None) -> SuccessRule:
    """What was chosen; a column alone is asked for its highest value."""
    suggested = default_rule(manifest)
    if suggested.column not in {REWARD, *run.columns}:  # other rewards than the version's were applied
        suggested = SuccessRule(REWARD, 0.5)
    if column is None or column == suggested.column:
        return suggested if at_least is None else SuccessRule(suggested.column, at_least)
    declared = {each.name: each.range for each in manifest.columns}.get(column)
    return SuccessRule(column, at_least if at_least is not None else (declared or (0.0, 1.0))[1])


def _scope(run: Run, everything: Outcomes, choice: FiguresChoice) -> Scope:
    """Of a training run its newest held-out examination, unless chosen otherwise."""
    if run.kind is not RunKind.TRAINING:
        return Scope(run.id)
    phase = choice.phase
    if phase is None:
        phase = next((each for each in (Phase.HELDOUT, Phase.TRAIN, Phase.WARM_UP) if each in everything.phases), None)
    step = choice.step if choice.step is not None else everything.latest.get(phase or "")
    return Scope(run.id, phase, step)


def _messages(session: Session, run: Run) -> list[FailureMessage]:
    rows = session.execute(_MESSAGES, {"run": run.id, "most": MOST_MESSAGES})
    return [FailureMessage(row.kind, row.message, row.amount, row.rollout_id) for row in rows]
