"""All figures of a run in one place: what its page, the JSON API and the command line show."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict
from sqlalchemy import text
from sqlalchemy.orm import Session

from backend.domain.environments.manifest import Manifest
from backend.domain.results.pass_at_k import SuccessRule
from backend.domain.review.judged_curve import Share
from backend.domain.statistics import Coverage
from backend.domain.vocabulary import Phase, RunKind
from backend.results.cheating import cheat_rate, cheat_rates, in_total
from backend.results.environment_figures import (
    EnvironmentFigures,
    LevelFigures,
    environment_figures,
    levels_of,
    mixed_columns,
    mixed_groups,
)
from backend.results.figures import ColumnFigures, Outcomes, Scope, outcomes
from backend.results.group_figures import GroupFigures
from backend.results.success_rules import rule_of
from backend.runs.mixes import versions_of
from backend.runs.tables import Run

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
    cheat_rate: Share | None = None
    """Of the whole run, where it played impossible tasks; no other figure counts them."""
    environments: Sequence[EnvironmentFigures] = ()
    """Each one's own, where the run plays several."""

    @property
    def levels(self) -> list[LevelFigures]:
        """Empty where there are several environments: their levels say nothing together."""
        return [] if self.environments else levels_of(self.columns[0], self.groups)


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
    versions = versions_of(session, run)
    has_canaries = Phase.CANARY in everything.phases
    is_alone = len(versions) == 1
    rates = cheat_rates(session, run, versions) if has_canaries and not is_alone else {}
    return RunFigures(
        scope=scope,
        rule=rule,
        all=everything,
        scoped=scoped,
        coverage=coverage_of(run, everything if run.kind is RunKind.EVALUATION else scoped, scope),
        columns=mixed_columns(session, run, scope, versions),
        groups=mixed_groups(session, run, scope, versions, rule),
        messages=_messages(session, run) if everything.failed else (),
        environments=environment_figures(session, run, scope, versions, rates),
        cheat_rate=cheat_rate(session, run, rule) if has_canaries and is_alone else in_total(list(rates.values())),
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


def _scope(run: Run, everything: Outcomes, choice: FiguresChoice) -> Scope:
    """Of a training run its newest held-out examination, of an evaluation all but canaries, unless chosen otherwise."""
    if run.kind is not RunKind.TRAINING:
        return Scope(run.id, choice.phase or Phase.EVALUATION) if Phase.CANARY in everything.phases else Scope(run.id)
    phase = choice.phase
    if phase is None:
        phase = next((each for each in (Phase.HELDOUT, Phase.TRAIN, Phase.WARM_UP) if each in everything.phases), None)
    step = choice.step if choice.step is not None else everything.latest.get(phase or "")
    return Scope(run.id, phase, step)


def _messages(session: Session, run: Run) -> list[FailureMessage]:
    rows = session.execute(_MESSAGES, {"run": run.id, "most": MOST_MESSAGES})
    return [FailureMessage(row.kind, row.message, row.amount, row.rollout_id) for row in rows]
