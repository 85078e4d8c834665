"""Compare regraded and replayed runs with their sources: whole runs, reward columns, and rollouts step by step."""

import uuid
from collections.abc import Sequence

from sqlalchemy import select, text
from sqlalchemy.orm import Session, joinedload, undefer

from backend.domain.environments.manifest import Manifest
from backend.domain.rollouts.divergence import Difference, RecordedEpisode, differences, prompts_of
from backend.domain.rollouts.regrading import DIVERGED_AT, REPLIES_ENDED, REPLIES_LEFT, copy_id
from backend.domain.statistics import TIE, estimate_of
from backend.domain.vocabulary import RunKind
from backend.environments.tables import EnvironmentVersion
from backend.errors import NotFound
from backend.rollouts.queries import columns_of
from backend.rollouts.regrading.schemas import ColumnChange, ColumnPair, RegradingCounts
from backend.rollouts.tables import Group, Rollout
from backend.runs.queries import with_relations
from backend.runs.tables import Run

KINDS = (RunKind.RESCORE, RunKind.REPLAY)
MAX_CHANGED = 12


class NotRegraded(NotFound):
    """This run was neither regraded nor replayed, so there is nothing to compare it with."""


_COUNTS = text(f"""
SELECT count(*) AS rollouts,
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
_DIVERGING_STEPS = text(f"""
SELECT (metrics->>'{DIVERGED_AT}')::float8::int AS step, count(*) AS amount FROM rollouts
WHERE run_id = :run AND metrics ? '{DIVERGED_AT}' GROUP BY 1 ORDER BY 1
""")
_MOST_CHANGED = text(f"""
SELECT r.id, s.reward AS before FROM rollouts r JOIN rollouts s ON s.id = r.source_id
WHERE r.run_id = :run AND r.status = 'completed'
  AND (r.metrics ? '{DIVERGED_AT}' OR abs(r.reward::float8 - s.reward) > {TIE})
ORDER BY abs(r.reward::float8 - s.reward) DESC NULLS LAST, r.seq LIMIT :limit
""")


def count_outcomes(session: Session, run_id: uuid.UUID) -> RegradingCounts:
    return RegradingCounts(**session.execute(_COUNTS, {"run": run_id}).mappings().one())


def diverging_steps(session: Session, run_id: uuid.UUID) -> dict[int, int]:
    """Number of rollouts by the first step that differs; 0 is the reset."""
    return {row.step: row.amount for row in session.execute(_DIVERGING_STEPS, {"run": run_id})}


def source_of(session: Session, run: Run) -> Run | None:
    """The run whose rollouts these are; None if it was deleted. Raises NotRegraded."""
    if run.kind not in KINDS:
        raise NotRegraded
    return session.scalars(with_relations(select(Run)).where(Run.id == run.source_run_id)).one_or_none()


def runs_of_batch(session: Session, batch: uuid.UUID) -> Sequence[Run]:
    """Runs that were started together, in the order of their sources."""
    own = (Run.kind.in_(KINDS), Run.configuration["batch"].astext == str(batch))
    runs = session.scalars(with_relations(select(Run)).where(*own).order_by(Run.id)).all()
    if not runs:
        raise NotFound("There are no runs that were started together at this address.")
    return runs


def column_changes(session: Session, run: Run, source: Run) -> list[ColumnChange]:
    """Means over tasks of the rollouts that both sides completed; the reward first."""
    names = list(dict.fromkeys([*run.columns, *source.columns]))
    new, old = (
        [
            f"{table}.reward::float8",
            *(f"{table}.columns[{own.index(name) + 1}]::float8" if name in own else "NULL::float8" for name in names),
        ]
        for table, own in (("r", run.columns), ("s", source.columns))
    )
    by_task = ", ".join(
        f"avg({new[n]}) AS new_{n}, avg({old[n]}) AS old_{n}, avg({new[n]} - {old[n]}) AS gain_{n}"
        for n in range(len(new))
    )
    figures = ", ".join(
        f"avg(new_{n}) AS new_{n}, avg(old_{n}) AS old_{n}, avg(gain_{n}) AS gain_{n},"
        f" stddev_samp(gain_{n}) AS spread_{n}, count(gain_{n}) AS count_{n}"
        for n in range(len(new))
    )
    statement = text(f"""
    WITH task AS (
        SELECT {by_task} FROM rollouts r JOIN rollouts s ON s.id = r.source_id
        WHERE r.run_id = :run AND r.status = 'completed' AND s.status = 'completed' GROUP BY r.group_id
    ) SELECT {figures} FROM task
    """)
    row = session.execute(statement, {"run": run.id}).mappings().one()
    before, after = (dict(zip(each.columns, each.weights, strict=False)) for each in (source, run))
    changes = []
    for n, name in enumerate(["reward", *names]):
        gain, spread, count = (row[f"{part}_{n}"] for part in ("gain", "spread", "count"))
        change = ColumnChange(
            name=name,
            before=row[f"old_{n}"],
            after=row[f"new_{n}"],
            difference=None if gain is None else estimate_of(gain, spread or 0.0, count),
            weight_before=before.get(name) if n else None,
            weight_after=after.get(name) if n else None,
        )
        changes.append(change)
    return changes


def most_changed(session: Session, run_id: uuid.UUID, limit: int = MAX_CHANGED) -> list[tuple[Rollout, float | None]]:
    """Rollouts with their reward before, by its change, largest first. Diverged ones are listed even without one."""
    rows = session.execute(_MOST_CHANGED, {"run": run_id, "limit": limit}).all()
    with_task = joinedload(Rollout.group).joinedload(Group.task)
    statement = select(Rollout).options(with_task).where(Rollout.id.in_([row.id for row in rows]))
    by_id = {rollout.id: rollout for rollout in session.scalars(statement)}
    return [(by_id[row.id], row.before) for row in rows if row.id in by_id]


def original_of(session: Session, rollout: Rollout) -> Rollout | None:
    """The rollout that was regraded or replayed; None if it was deleted, or if this is no copy."""
    if rollout.source_id is None:
        return None
    with_environment = joinedload(Rollout.run).joinedload(Run.version).joinedload(EnvironmentVersion.environment)
    whole = [undefer(Rollout.opening), undefer(Rollout.steps), undefer(Rollout.messages), with_environment]
    return session.get(Rollout, rollout.source_id, options=whole)


def copies_of(session: Session, rollout: Rollout) -> list[tuple[Run, Rollout]]:
    """Copies of the rollout in regrading and replay runs, oldest first. Their ids follow from its place in the run."""
    with_environment = joinedload(Run.version).joinedload(EnvironmentVersion.environment)
    regrading = select(Run).where(Run.source_run_id == rollout.run_id, Run.kind.in_(KINDS)).order_by(Run.id)
    place = rollout.training_step, rollout.group.ordinal, rollout.member
    runs = {copy_id(run.id, *place): run for run in session.scalars(regrading.options(with_environment))}
    found = select(Rollout).where(Rollout.id.in_(runs), Rollout.source_id == rollout.id)
    copies = {each.id: each for each in session.scalars(found)}
    return [(run, copies[id]) for id, run in runs.items() if id in copies]


def column_pairs(before: Rollout, after: Rollout) -> list[ColumnPair]:
    """The reward first, then every column of either side."""
    old, new = columns_of(before.run, before), columns_of(after.run, after)
    pairs = [ColumnPair(name="reward", before=before.reward, after=after.reward)]
    return pairs + [ColumnPair(name=n, before=old.get(n), after=new.get(n)) for n in dict.fromkeys([*new, *old])]


def step_differences(before: Rollout, after: Rollout) -> dict[int, Difference]:
    """Steps that differ by more than the environment's declared noise, by number."""
    noise = Manifest.model_validate(after.run.version.manifest).proctor.checks.noise
    old, new = (RecordedEpisode(each.opening, each.steps, prompts_of(each.messages)) for each in (before, after))
    return {each.step: each for each in differences(old, new, noise)}
