"""What may carry a weight when stored rollouts are scored again: reward columns, metrics, judges' scores."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Double, Select, and_, case, cast, func, literal, select, text
from sqlalchemy.orm import Session

from backend.db.models import Judge, Judgement, Rollout, Run
from backend.domain.rescoring import DIVERGED_AT, JUDGE_PREFIX, REPLIES_ENDED, REPLIES_LEFT
from backend.domain.vocabulary import JudgementStatus, RolloutStatus
from backend.errors import InvalidInput

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


def candidates(session: Session, run: Run) -> list[Candidate]:
    """The run's columns in declared order, then its metrics, then the judges that looked at it."""
    columns = [
        Candidate(name, Origin.COLUMN, weight, position)
        for position, (name, weight) in enumerate(zip(run.columns, run.weights, strict=True), start=1)
    ]
    known = set(run.columns)
    found = session.scalars(_METRICS, {"run": run.id, "looked_at": METRICS_LOOKED_AT}).all()
    metrics = [name for name in found if name not in known | _OURS and not name.startswith(JUDGE_PREFIX)]
    judged = select(Judgement.judge_id).where(Judgement.run_id == run.id).distinct()
    judges = session.execute(select(Judge.id, Judge.name).where(Judge.id.in_(judged)).order_by(Judge.name)).all()
    return [
        *columns,
        *(Candidate(name, Origin.METRIC) for name in metrics[:MAX_METRICS]),
        *(
            Candidate(f"{JUDGE_PREFIX}{judge.name}", Origin.JUDGE, judge_id=judge.id)
            for judge in judges
            if f"{JUDGE_PREFIX}{judge.name}" not in known
        ),
    ]


def weighed(offered: Sequence[Candidate], weights: Mapping[str, float]) -> list[Candidate]:
    """All reward columns, those not named with the weight that they have, and what else is given one."""
    names = {candidate.name for candidate in offered}
    if unknown := [name for name in weights if name not in names]:
        raise InvalidInput(fields={"weights": f"There is no {', '.join(unknown)[:200]}; there is {_listed(offered)}."})
    changed = [
        Candidate(each.name, each.origin, weights.get(each.name, each.weight), each.position, each.judge_id)
        for each in offered
    ]
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
        judgement = Judgement.__table__.alias(f"j{number}")
        theirs = and_(
            judgement.c.rollout_id == rollout.id,
            judgement.c.judge_id == candidate.judge_id,
            judgement.c.status == JudgementStatus.COMPLETED,
        )
        joins.append((judgement, theirs))
        values.append(cast(judgement.c.score, Double).label(f"v{number}"))
    return values, joins


def _value(rollout: Any, candidate: Candidate) -> ColumnElement[Any]:
    if candidate.origin is Origin.COLUMN:
        return cast(rollout.columns[candidate.position], Double)
    number = rollout.metrics[candidate.name]
    is_number = func.jsonb_typeof(number) == "number"
    return case((is_number, cast(number.astext, Double)), else_=cast(literal(0.0), Double))


def _listed(offered: Sequence[Candidate]) -> str:
    return ", ".join(candidate.name for candidate in offered)
