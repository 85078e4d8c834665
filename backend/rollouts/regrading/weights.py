"""Other weights for stored rollouts: the terms that can carry a weight, their values in SQL, and a preview.

Scores of judges that were shown the policy's reasoning cannot carry a weight: training on them teaches the policy to
hide its intentions (arXiv:2503.11926). Every way to a regraded reward passes `apply_weights`, which refuses them.
numpy and scipy are imported where they are used, because they take longer to import than the web takes to start.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Double, FromClause, and_, case, cast, func, literal, select, text
from sqlalchemy.orm import Session

from backend.domain.described import described
from backend.domain.graders.settings import JUDGE_PREFIX, GraderKind
from backend.domain.rollouts.regrading import DIVERGED_AT, REPLIES_ENDED, REPLIES_LEFT
from backend.domain.statistics import TIE, Estimate, estimate_mean, paired_difference
from backend.domain.vocabulary import GradeStatus, RolloutStatus
from backend.errors import InvalidInput
from backend.graders.tables import Grade, Grader
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

METRICS_SAMPLED = 500
"""Rollouts that are sampled for the names of metrics."""
MAX_METRICS = 32
MAX_PREVIEWED = 5000
"""Rollouts of a preview; of a larger run, the first ones."""
EXTREMES = 5
_REPLAY_METRICS = {DIVERGED_AT, REPLIES_ENDED, REPLIES_LEFT}

_METRIC_NAMES = text("""
SELECT DISTINCT m.key
FROM (SELECT metrics FROM rollouts WHERE run_id = :run AND status = 'completed' ORDER BY seq LIMIT :sampled) AS r
CROSS JOIN LATERAL jsonb_each(r.metrics) AS m
WHERE jsonb_typeof(m.value) = 'number'
ORDER BY m.key
""")


class ReasoningInReward(InvalidInput):
    """A judge that was shown the policy's reasoning cannot carry a weight."""


class TermOrigin(StrEnum):
    """Where the value of a reward term is stored."""

    COLUMN = "column"
    METRIC = "metric"
    JUDGE = "judge"


@dataclass(frozen=True, slots=True)
class RewardTerm:
    """A value that every rollout has and that can carry a weight."""

    name: str
    origin: TermOrigin
    weight: float = 0.0
    position: int = 0
    """Position of a reward column, from 1."""
    judge_id: uuid.UUID | None = None
    saw_reasoning: bool = False
    """A judge that was shown the policy's reasoning. Only the weight 0 is accepted."""


def list_reward_terms(session: Session, run: Run) -> list[RewardTerm]:
    """List the run's columns in declared order, then its metrics, then the judges that scored it."""

    def judges_of(*run_ids: uuid.UUID) -> Sequence[Grader]:
        has_graded = select(Grade.id).where(Grade.run_id.in_(run_ids), Grade.grader_id == Grader.id)
        judges = select(Grader).where(Grader.kind == GraderKind.JUDGE, has_graded.exists())
        return session.scalars(judges.order_by(Grader.name)).all()

    # A regraded run may have a judge's score as a column. Whether that judge saw the reasoning is known of the sources.
    tainted = set()
    if any(name.startswith(JUDGE_PREFIX) for name in run.columns):
        sources, source_id = list[uuid.UUID](), run.source_run_id
        while source_id is not None:
            sources.append(source_id)
            source_id = session.scalar(select(Run.source_run_id).where(Run.id == source_id))
        readers = [judge for judge in judges_of(*sources) if judge.settings.get("shows_reasoning")]
        tainted = {f"{JUDGE_PREFIX}{judge.name.partition(' (deleted ')[0]}" for judge in readers}

    terms = [
        RewardTerm(name, TermOrigin.COLUMN, weight, position, saw_reasoning=name in tainted)
        for position, (name, weight) in enumerate(zip(run.columns, run.weights, strict=True), start=1)
    ]
    known = set(run.columns) | _REPLAY_METRICS
    metrics = session.scalars(_METRIC_NAMES, {"run": run.id, "sampled": METRICS_SAMPLED}).all()
    metrics = [name for name in metrics if name not in known and not name.startswith(JUDGE_PREFIX)]
    terms += [RewardTerm(name, TermOrigin.METRIC) for name in metrics[:MAX_METRICS]]
    for judge in judges_of(run.id):
        if (name := f"{JUDGE_PREFIX}{judge.name}") not in known:
            saw_reasoning = bool(judge.settings.get("shows_reasoning"))
            terms.append(RewardTerm(name, TermOrigin.JUDGE, judge_id=judge.id, saw_reasoning=saw_reasoning))
    return terms


def apply_weights(terms: Sequence[RewardTerm], weights: Mapping[str, float]) -> list[RewardTerm]:
    """Return all reward columns, and other terms that get a weight. Columns that are not named keep their weight.

    Raises ReasoningInReward for a judge that was shown the policy's reasoning.
    """
    names = [term.name for term in terms]
    if unknown := [name for name in weights if name not in names]:
        message = f"Unknown: {', '.join(unknown)[:200]}. Choose from {', '.join(names)}."
        raise InvalidInput(fields={"weights": message})
    changed = [replace(term, weight=weights.get(term.name, term.weight)) for term in terms]
    if readers := [term.name for term in changed if term.saw_reasoning and term.weight]:
        message = (
            f"{', '.join(readers)[:200]} cannot carry a weight: this judge was shown the policy's reasoning, and a "
            "policy that is rewarded for its reasoning learns to hide it (arXiv:2503.11926). Start a copy of the judge "
            "that does not see the reasoning on this run, and weight that one."
        )
        raise ReasoningInReward(message, {"weights": message})
    return [term for term in changed if term.origin is TermOrigin.COLUMN or term.weight]


def term_values(
    rollout: Any, terms: Sequence[RewardTerm]
) -> tuple[list[ColumnElement[float]], list[tuple[FromClause, ColumnElement[bool]]]]:
    """The value of each term as SQL over a rollout's table columns, and the outer joins with grades that they need.

    A judge's missing score is null; a missing metric is 0.
    """
    values: list[ColumnElement[float]] = []
    joins: list[tuple[FromClause, ColumnElement[bool]]] = []
    value: ColumnElement[float]
    for number, term in enumerate(terms):
        if term.origin is TermOrigin.JUDGE:
            grade = Grade.__table__.alias(f"j{number}")
            is_of_judge = and_(grade.c.grader_id == term.judge_id, grade.c.status == GradeStatus.COMPLETED)
            joins.append((grade, and_(grade.c.rollout_id == rollout.id, is_of_judge)))
            value = cast(grade.c.score, Double)
        elif term.origin is TermOrigin.COLUMN:
            value = cast(rollout.columns[term.position], Double)
        else:
            metric = rollout.metrics[term.name]
            is_number = func.jsonb_typeof(metric) == "number"
            value = case((is_number, cast(metric.astext, Double)), else_=cast(literal(0.0), Double))
        values.append(value)
    return values, joins


@dataclass(frozen=True, slots=True)
class GroupSpread:
    """Fractions of the groups with several rollouts. Good and bad are separated at the middle of the reward range."""

    groups: int
    mixed: float
    all_good: float
    all_bad: float


@dataclass(frozen=True, slots=True)
class RankedRollout:
    """One rollout with its rank in both orders, 1 for the best."""

    rollout_id: uuid.UUID
    before: float
    after: float
    place_before: int
    place_after: int


@dataclass(frozen=True, slots=True)
@described
class WeightsPreview:
    """A run under its own weights and under others."""

    rollouts: int
    """Rollouts that the preview read."""
    is_part: bool
    """The run has more."""
    without_value: int
    """Rollouts without a judge's score. Regrading stores them as failed, without a reward."""
    before: Estimate | None = None
    """Mean reward over tasks."""
    after: Estimate | None = None
    difference: Estimate | None = None
    spread_before: GroupSpread | None = None
    spread_after: GroupSpread | None = None
    rank_correlation: float | None = None
    """Kendall's tau-b of both orders of the rollouts: 1 is the same order, -1 the reverse."""
    turned_pairs: float | None = None
    """Fraction of the pairs within a group that change their order."""
    best: Sequence[RankedRollout] = ()
    """By the new weights."""
    worst: Sequence[RankedRollout] = ()


def preview_weights(
    session: Session, run: Run, terms: Sequence[RewardTerm], conditions: Sequence[ColumnElement[bool]] = ()
) -> WeightsPreview:
    """Compute a run's rewards by the weights of `terms`, without storing anything."""
    import numpy as np

    values, joins = term_values(Rollout.__table__.c, terms)
    labeled = [value.label(f"v{number}") for number, value in enumerate(values)]
    statement = select(Rollout.id, Rollout.group_id, cast(Rollout.reward, Double), *labeled)
    for grade, is_of_term in joins:
        statement = statement.outerjoin(grade, is_of_term)
    own = (Rollout.run_id == run.id, Rollout.status == RolloutStatus.COMPLETED)
    statement = statement.where(*own, *conditions).order_by(Rollout.seq).limit(MAX_PREVIEWED + 1)
    rows = session.execute(statement).all()
    is_part = len(rows) > MAX_PREVIEWED
    rows = rows[:MAX_PREVIEWED]

    table = np.array([row[2:] for row in rows], dtype=float).reshape(len(rows), 1 + len(terms))
    kept = np.flatnonzero(~np.isnan(table).any(axis=1)).tolist()
    found = WeightsPreview(len(rows), is_part, without_value=len(rows) - len(kept))
    if not kept:
        return found
    before, after = table[kept, 0], table[kept, 1:] @ np.array([term.weight for term in terms])
    after = np.where(np.abs(after - before) <= TIE * np.maximum(1.0, np.abs(before)), before, after)
    numbers: dict[uuid.UUID, int] = {}
    groups = np.array([numbers.setdefault(rows[index].group_id, len(numbers)) for index in kept])
    task_before, task_after = (np.bincount(groups, rewards) / np.bincount(groups) for rewards in (before, after))

    place_before, place_after = (1 + np.sort(-rewards).searchsorted(-rewards) for rewards in (before, after))
    order = np.argsort(-after, kind="stable")

    best, worst = (
        [
            RankedRollout(
                rows[kept[index]].id,
                float(before[index]),
                float(after[index]),
                int(place_before[index]),
                int(place_after[index]),
            )
            for index in indexes
        ]
        for indexes in (order[:EXTREMES], order[::-1][:EXTREMES])
    )
    return replace(
        found,
        before=estimate_mean(task_before),
        after=estimate_mean(task_after),
        difference=paired_difference(task_before, task_after),
        spread_before=_spread_within_groups(before, groups),
        spread_after=_spread_within_groups(after, groups),
        rank_correlation=rank_correlation(before, after),
        turned_pairs=_turned_pairs(before, after, groups),
        best=best,
        worst=worst,
    )


def rank_correlation(before: Sequence[float] | Floats, after: Sequence[float] | Floats) -> float | None:
    """Kendall's tau-b of two orders; None if all values are equal on one side."""
    import numpy as np
    from scipy import stats

    if np.ptp(before) == 0 or np.ptp(after) == 0:
        return None
    return float(stats.kendalltau(before, after).statistic)


def _spread_within_groups(rewards: Floats, groups: Integers) -> GroupSpread | None:
    import numpy as np

    count = int(groups.max()) + 1
    low, high = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(low, groups, rewards)
    np.maximum.at(high, groups, rewards)
    several = np.bincount(groups) > 1
    if not several.any():
        return None
    low, high = low[several], high[several]
    mixed = high - low > TIE
    is_good = high >= (rewards.min() + rewards.max()) / 2
    shares = (float(part.mean()) for part in (mixed, ~mixed & is_good, ~mixed & ~is_good))
    return GroupSpread(len(low), *shares)


def _turned_pairs(before: Floats, after: Floats, groups: Integers) -> float | None:
    """Fraction of all pairs within a group whose order reverses. Compares each member with the one 1, 2, … further."""
    import numpy as np

    order = np.argsort(groups, kind="stable")
    before, after, groups = before[order], after[order], groups[order]
    different = turned = 0
    for distance in range(1, int(np.bincount(groups).max())):
        is_pair = groups[distance:] == groups[:-distance]
        change_before, change_after = ((side[distance:] - side[:-distance])[is_pair] for side in (before, after))
        differs = np.abs(change_before) > TIE
        different += int(differs.sum())
        turned += int((differs & (np.abs(change_after) > TIE) & (change_before * change_after < 0)).sum())
    return turned / different if different else None
