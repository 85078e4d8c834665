"""What may carry a weight when stored rollouts are scored again: reward columns, metrics, judges' scores.

Not the score of a judge that was shown what the policy thought: whoever trains against it teaches the policy to hide
what it means to do (arXiv:2503.11926). Every way to a re-score passes `weighed`, which refuses it.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Double, Select, and_, case, cast, func, literal, select, text
from sqlalchemy.orm import Session

from backend.domain.graders.settings import JUDGE_PREFIX, GraderKind
from backend.domain.rollouts.regrading import DIVERGED_AT, REPLIES_ENDED, REPLIES_LEFT
from backend.domain.vocabulary import GradeStatus, RolloutStatus
from backend.errors import InvalidInput
from backend.graders.tables import Grade, Grader
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run

METRICS_LOOKED_AT = 500
"""Rollouts whose metrics tell which there are."""
MAX_METRICS = 32
_OURS = {DIVERGED_AT, REPLIES_ENDED, REPLIES_LEFT}

_METRICS = text("""
SELECT DISTINCT m.key
FROM (SELECT metrics FROM rollouts WHERE run_id = :run AND status = 'completed' ORDER BY seq LIMIT :looked_at) AS r
CROSS JOIN LATERAL jsonb_each(r.metrics) AS m
WHERE jsonb_typeof(m.value) = 'number'
ORDER BY m.key
""")


class ReasoningIsNoReward(InvalidInput):
    """A judge that was shown what the policy thought cannot carry a weight."""

    def __init__(self, names: Sequence[str]) -> None:
        told = (
            f"{', '.join(names)[:200]} cannot carry a weight: that judge was shown what the policy thought, and a "
            "policy that is paid by its thoughts learns to hide them (arXiv:2503.11926). Let a copy of the judge that "
            "sees no thoughts look at the run, and weigh that."
        )
        super().__init__(told, fields={"weights": told})


class Origin(StrEnum):
    """Where a value is stored."""

    COLUMN = "column"
    METRIC = "metric"
    JUDGE = "judge"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One value by rollout that may carry a weight."""

    name: str
    origin: Origin
    weight: float = 0.0
    """What it carries in the run as it is."""
    position: int = 0
    """Of a reward column, from 1."""
    judge_id: uuid.UUID | None = None
    saw_reasoning: bool = False
    """A judge that was shown the policy's thoughts; no weight but 0 is taken."""


def candidates(session: Session, run: Run) -> list[Candidate]:
    """The run's columns in declared order, then its metrics, then the judges that looked at it."""
    readers = _readers_among(session, run)
    columns = [
        Candidate(name, Origin.COLUMN, weight, position, saw_reasoning=name in readers)
        for position, (name, weight) in enumerate(zip(run.columns, run.weights, strict=True), start=1)
    ]
    known = set(run.columns)
    found = session.scalars(_METRICS, {"run": run.id, "looked_at": METRICS_LOOKED_AT}).all()
    metrics = [name for name in found if name not in known | _OURS and not name.startswith(JUDGE_PREFIX)]
    judges = [judge for judge in _judges_of(session, run.id) if f"{JUDGE_PREFIX}{judge.name}" not in known]
    return [
        *columns,
        *(Candidate(name, Origin.METRIC) for name in metrics[:MAX_METRICS]),
        *(
            Candidate(f"{JUDGE_PREFIX}{judge.name}", Origin.JUDGE, judge_id=judge.id, saw_reasoning=_sees(judge))
            for judge in judges
        ),
    ]


def weighed(offered: Sequence[Candidate], weights: Mapping[str, float]) -> list[Candidate]:
    """All reward columns, those not named with the weight that they have, and what else is given one.

    Raises ReasoningIsNoReward where a judge that was shown the policy's thoughts would have a weight.
    """
    names = {candidate.name for candidate in offered}
    if unknown := [name for name in weights if name not in names]:
        raise InvalidInput(fields={"weights": f"There is no {', '.join(unknown)[:200]}; there is {_listed(offered)}."})
    changed = [replace(each, weight=weights[each.name]) if each.name in weights else each for each in offered]
    if readers := [each.name for each in changed if each.saw_reasoning and each.weight]:
        raise ReasoningIsNoReward(readers)
    return [each for each in changed if each.origin is Origin.COLUMN or each.weight]


def measured(run: Run, chosen: Sequence[Candidate], conditions: Sequence[ColumnElement[bool]] = ()) -> Select[Any]:
    """`id`, `group_id`, `seq`, `level`, `reward`, then each value; a value that is missing is null."""
    values, joins = readings(Rollout.__table__.c, chosen)
    statement = select(Rollout.id, Rollout.group_id, Rollout.seq, Rollout.level, cast(Rollout.reward, Double), *values)
    for judgement, theirs in joins:
        statement = statement.outerjoin(judgement, theirs)
    return statement.where(Rollout.run_id == run.id, Rollout.status == RolloutStatus.COMPLETED, *conditions)


def readings(
    rollout: Any, chosen: Sequence[Candidate]
) -> tuple[list[ColumnElement[Any]], list[tuple[Any, ColumnElement[bool]]]]:
    """Each value of a rollout by its table's columns, and the judgements to join for it with their conditions."""
    values: list[ColumnElement[Any]] = []
    joins: list[tuple[Any, ColumnElement[bool]]] = []
    for number, candidate in enumerate(chosen):
        if candidate.judge_id is None:
            values.append(_value(rollout, candidate).label(f"v{number}"))
            continue
        judgement = Grade.__table__.alias(f"j{number}")
        theirs = and_(
            judgement.c.rollout_id == rollout.id,
            judgement.c.grader_id == candidate.judge_id,
            judgement.c.status == GradeStatus.COMPLETED,
        )
        joins.append((judgement, theirs))
        values.append(cast(judgement.c.score, Double).label(f"v{number}"))
    return values, joins


def _judges_of(session: Session, *run_ids: uuid.UUID) -> Sequence[Grader]:
    graders = select(Grade.grader_id).where(Grade.run_id.in_(run_ids)).distinct()
    judges = select(Grader).where(Grader.id.in_(graders), Grader.kind == GraderKind.JUDGE)
    return session.scalars(judges.order_by(Grader.name)).all()


def _sees(judge: Grader) -> bool:
    return bool(judge.settings.get("shows_reasoning"))


def _readers_among(session: Session, run: Run) -> set[str]:
    """Columns of an earlier re-score that hold what a judge said who was shown the thoughts."""
    if not any(name.startswith(JUDGE_PREFIX) for name in run.columns):
        return set()
    judges = _judges_of(session, *_sources_of(session, run))
    return {f"{JUDGE_PREFIX}{judge.name.partition(' (deleted ')[0]}" for judge in judges if _sees(judge)}


def _sources_of(session: Session, run: Run) -> Iterator[uuid.UUID]:
    """The run whose rollouts it took over, the one that this took them from, and so on."""
    source_id = run.source_run_id
    while source_id is not None:
        yield source_id
        source_id = session.scalar(select(Run.source_run_id).where(Run.id == source_id))


def _value(rollout: Any, candidate: Candidate) -> ColumnElement[Any]:
    if candidate.origin is Origin.COLUMN:
        return cast(rollout.columns[candidate.position], Double)
    number = rollout.metrics[candidate.name]
    is_number = func.jsonb_typeof(number) == "number"
    return case((is_number, cast(number.astext, Double)), else_=cast(literal(0.0), Double))


def _listed(offered: Sequence[Candidate]) -> str:
    return ", ".join(candidate.name for candidate in offered)
