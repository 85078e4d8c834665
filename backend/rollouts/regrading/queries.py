"""Reading re-scored and replayed runs beside the rollouts that they come from."""

import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import select, text
from sqlalchemy.orm import Session, contains_eager, joinedload

from backend.domain.rollouts.regrading import DIVERGED_AT, REPLIES_ENDED, REPLIES_LEFT
from backend.domain.statistics import TIE, Estimate, estimate_of
from backend.domain.vocabulary import RunKind
from backend.environments.tables import EnvironmentVersion
from backend.errors import NotFound
from backend.rollouts.tables import Group, Rollout
from backend.runs.tables import Run

KINDS = (RunKind.RESCORE, RunKind.REPLAY)
SHOWN = 12


class NotRescored(NotFound):
    """This run is neither a re-score nor a replay: there is nothing before it."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What became of the originals."""

    total: int = 0
    completed: int = 0
    failed: int = 0
    changed: int = 0
    """Completed with another reward than the original's."""
    diverged: int = 0
    """Went another way at some step."""
    replies_ended: int = 0
    replies_left: int = 0
    most_common: str = ""
    """The message that most failed ones have."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.total:,} rollouts, {self.changed:,} with another reward, {self.failed:,} failed"


_TALLY = text(f"""
SELECT count(*) AS total,
       count(*) FILTER (WHERE r.status = 'completed') AS completed,
       count(*) FILTER (WHERE r.status = 'failed') AS failed,
       count(*) FILTER (WHERE abs(r.reward::float8 - s.reward) > {TIE} * greatest(1, abs(s.reward))) AS changed,
       count(*) FILTER (WHERE r.metrics ? '{DIVERGED_AT}') AS diverged,
       count(*) FILTER (WHERE r.metrics ? '{REPLIES_ENDED}') AS replies_ended,
       count(*) FILTER (WHERE r.metrics ? '{REPLIES_LEFT}') AS replies_left,
       coalesce(mode() WITHIN GROUP (ORDER BY r.error_message), '') AS most_common
FROM rollouts r LEFT JOIN rollouts s ON s.id = r.source_id
WHERE r.run_id = :run
""")


def tally(session: Session, run_id: uuid.UUID) -> Tally:
    return Tally(**session.execute(_TALLY, {"run": run_id}).mappings().one())


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """A column that the original and the new run have, over the pairs that both completed; the reward first."""

    name: str
    before: float | None
    """None: the original has no such column."""
    after: float | None
    difference: Estimate | None
    """After minus before over tasks."""
    weight_before: float | None = None
    weight_after: float | None = None


def column_changes(session: Session, run: Run, source: Run) -> list[ColumnChange]:
    """Means over tasks of the pairs that both sides completed; the reward first."""
    names = list(dict.fromkeys([*run.columns, *source.columns]))
    values = [("r.reward::float8", "s.reward::float8")] + [
        (_position("r", run.columns, name), _position("s", source.columns, name)) for name in names
    ]
    folded = ", ".join(
        f"avg({new}) AS new_{n}, avg({old}) AS old_{n}, avg({new} - {old}) AS gain_{n}"
        for n, (new, old) in enumerate(values)
    )
    figures = ", ".join(
        f"avg(new_{n}) AS new_{n}, avg(old_{n}) AS old_{n}, avg(gain_{n}) AS gain_{n},"
        f" stddev_samp(gain_{n}) AS spread_{n}, count(gain_{n}) AS count_{n}"
        for n in range(len(values))
    )
    row = session.execute(
        text(f"""
        WITH task AS (
            SELECT {folded} FROM rollouts r JOIN rollouts s ON s.id = r.source_id
            WHERE r.run_id = :run AND r.status = 'completed' AND s.status = 'completed' GROUP BY r.group_id
        ) SELECT {figures} FROM task
        """),
        {"run": run.id},
    ).mappings()
    found = row.one()
    weights = dict(zip(run.columns, run.weights, strict=False)), dict(zip(source.columns, source.weights, strict=False))
    return [
        ColumnChange(
            name=name or "reward",
            before=found[f"old_{n}"],
            after=found[f"new_{n}"],
            difference=_estimate(found[f"gain_{n}"], found[f"spread_{n}"], found[f"count_{n}"]),
            weight_before=weights[1].get(name),
            weight_after=weights[0].get(name),
        )
        for n, name in enumerate(["", *names])
    ]


def _position(table: str, columns: Sequence[str], name: str) -> str:
    return f"{table}.columns[{list(columns).index(name) + 1}]::float8" if name in columns else "NULL::float8"


def _estimate(mean: float | None, spread: float | None, count: int) -> Estimate | None:
    return None if mean is None else estimate_of(mean, spread or 0.0, count)


@dataclass(frozen=True, slots=True)
class Step:
    """How many rollouts go another way first at this step."""

    step: int
    count: int


def diverging_steps(session: Session, run_id: uuid.UUID) -> list[Step]:
    statement = text(f"""
        SELECT (metrics->>'{DIVERGED_AT}')::float8::int AS step, count(*) AS amount FROM rollouts
        WHERE run_id = :run AND metrics ? '{DIVERGED_AT}' GROUP BY 1 ORDER BY 1
    """)
    return [Step(row.step, row.amount) for row in session.execute(statement, {"run": run_id})]


@dataclass(frozen=True, slots=True)
class Changed:
    """A rollout beside its original."""

    rollout: Rollout
    before: float | None
    diverged_at: int | None

    @property
    def change(self) -> float | None:
        if self.before is None or self.rollout.reward is None:
            return None
        return self.rollout.reward - self.before


def most_changed(session: Session, run_id: uuid.UUID, limit: int = SHOWN) -> list[Changed]:
    """Largest change of the reward first; those that went another way before those that did not."""
    ids = session.execute(
        text(f"""
        SELECT r.id, s.reward AS before FROM rollouts r JOIN rollouts s ON s.id = r.source_id
        WHERE r.run_id = :run AND r.status = 'completed'
          AND (r.metrics ? '{DIVERGED_AT}' OR abs(r.reward::float8 - s.reward) > {TIE})
        ORDER BY abs(r.reward::float8 - s.reward) DESC NULLS LAST, r.seq LIMIT :limit
        """),
        {"run": run_id, "limit": limit},
    ).all()
    whole = joinedload(Rollout.group).joinedload(Group.task)
    statement = select(Rollout).options(whole).where(Rollout.id.in_([row.id for row in ids]))
    by_id = {rollout.id: rollout for rollout in session.scalars(statement)}
    return [
        Changed(by_id[row.id], row.before, _step(by_id[row.id].metrics.get(DIVERGED_AT)))
        for row in ids
        if row.id in by_id
    ]


def _step(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) else None


def source_of(session: Session, run: Run) -> Run | None:
    """The run whose rollouts these are, with its surroundings; None when it was deleted."""
    if run.kind not in KINDS:
        raise NotRescored
    if run.source_run_id is None:
        return None
    statement = (
        select(Run)
        .join(Run.version)
        .join(EnvironmentVersion.environment)
        .options(contains_eager(Run.version).contains_eager(EnvironmentVersion.environment), joinedload(Run.policy))
        .where(Run.id == run.source_run_id)
    )
    return session.scalars(statement).one_or_none()


def runs_of_batch(session: Session, batch: uuid.UUID) -> Sequence[Run]:
    """Those that were asked for together, in the order of their originals."""
    statement = (
        select(Run)
        .join(Run.version)
        .join(EnvironmentVersion.environment)
        .options(
            contains_eager(Run.version).contains_eager(EnvironmentVersion.environment),
            joinedload(Run.policy),
            joinedload(Run.checkpoint),
        )
        .where(Run.kind.in_(KINDS), Run.configuration["batch"].astext == str(batch))
        .order_by(Run.id)
    )
    runs = session.scalars(statement).all()
    if not runs:
        raise NotFound("No runs were scored again together under this address.")
    return runs


def versions_of(session: Session, environment_id: uuid.UUID) -> Sequence[EnvironmentVersion]:
    """Of one environment, newest first."""
    statement = select(EnvironmentVersion).where(EnvironmentVersion.environment_id == environment_id)
    return session.scalars(statement.order_by(EnvironmentVersion.number.desc())).all()
