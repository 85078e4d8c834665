"""Reading rollouts whole and in order, as many as there are: rows come by a cursor of the database, a few at a time."""

import uuid
from collections.abc import Iterator, Sequence
from importlib.metadata import version as package_version
from typing import Any

from sqlalchemy import Row, Select, distinct, func, select
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.domain.environments.manifest import Manifest
from backend.domain.rollouts.fields import MEASURED
from backend.domain.rollouts.record import SCHEMA
from backend.domain.vocabulary import Split
from backend.environments.tables import Environment, EnvironmentVersion
from backend.rollouts.formats.facts import RunFacts, Venue
from backend.rollouts.formats.streams import Plain
from backend.rollouts.queries import matching
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.mixes import is_mixed, versions_of
from backend.runs.tables import Run

ROWS = 100
"""Fetched at a time."""
_SAME = (
    "training_step",
    "attempts",
    "member",
    "metrics",
    "opening",
    "steps",
    "messages",
    "is_truncated",
    "tokens",
    "cost",
    *MEASURED,
)


def facts_of(session: Session, run: Run, where: str = "") -> RunFacts:
    """`run` with its version, environment and policy."""
    counted = select(func.count(distinct(Group.task_id)), func.coalesce(func.max(Rollout.member), 0) + 1)
    joined = counted.join(Rollout, Rollout.group_id == Group.id)
    tasks, members = session.execute(joined.where(Group.run_id == run.id)).one()
    policy, configuration = run.policy, run.configuration
    sampling = dict(configuration.get("sampling") or {})
    if "max_tokens_per_turn" in sampling:
        sampling["max_tokens"] = sampling.pop("max_tokens_per_turn")
    return RunFacts(
        id=str(run.id),
        name=run.name,
        kind=str(run.kind),
        environment=run.version.environment.name,
        version=run.version.number,
        content_hash=run.version.content_hash,
        policy=policy.name if policy else "",
        model=str((policy.configuration.get("model") if policy else None) or (policy.name if policy else "unknown")),
        columns=tuple(run.columns),
        weights=tuple(run.weights),
        sampling=sampling,
        tasks=tasks,
        group_size=members,
        seed=run.seed,
        created_at=run.created_at.isoformat(),
        started_at=(run.started_at or run.created_at).isoformat(),
        ended_at=run.ended_at.isoformat() if run.ended_at else "",
        proctor=package_version("proctor"),
        where=where,
        venues=_venues(session, run) if is_mixed(run) else {},
    )


def _venues(session: Session, run: Run) -> dict[str, Venue]:
    found = {}
    for version in versions_of(session, run):
        weights = {column.name: column.weight for column in Manifest.model_validate(version.manifest).columns}
        found[str(version.id)] = Venue(version.environment.name, version.number, version.content_hash, weights)
    return found


def splits_of(session: Session, run: Run, where: str = "") -> list[Split]:
    statement = select(Task.split).distinct().join(Group, Group.task_id == Task.id)
    statement = statement.join(Rollout, Rollout.group_id == Group.id)
    found = set(session.scalars(_narrowed(session, statement, run, where)))
    return [split for split in Split if split in found] or [Split.HELDOUT]


def count_rollouts(session: Session, run: Run, where: str = "") -> int:
    return int(session.scalars(_narrowed(session, select(func.count(Rollout.id)), run, where)).one())


def records(
    session: Session, run: Run, facts: RunFacts, *, where: str = "", split: Split | None = None
) -> Iterator[Plain]:
    """In the order of storing."""
    statement = _narrowed(session, _whole(), run, where).order_by(Rollout.seq)
    if split is not None:
        statement = statement.where(Task.split == split)
    found = session.execute(statement.execution_options(yield_per=ROWS))
    for row in found:
        yield _record(row, facts)


def _narrowed(session: Session, statement: Select[Any], run: Run, where: str) -> Select[Any]:
    statement = statement.where(Rollout.run_id == run.id)
    return statement.where(Rollout.id.in_(matching(session, run, where))) if where.strip() else statement


def _whole() -> Select[Any]:
    named = [getattr(Rollout, name) for name in _SAME]
    return (
        select(
            *named,
            Rollout.id,
            Rollout.phase,
            Rollout.status,
            Rollout.stop_reason,
            Rollout.error_kind,
            Rollout.error_message,
            Rollout.reward,
            Rollout.columns.label("scores"),
            Rollout.advantage,
            Rollout.started_at,
            Rollout.ended_at,
            Group.ordinal,
            Task.version_id,
            Task.split,
            Task.index.label("task_index"),
            Task.level,
            Task.seed,
            Task.arguments,
        )
        .join(Group, Group.id == Rollout.group_id)
        .join(Task, Task.id == Group.task_id)
    )


def _record(row: Row[Any], facts: RunFacts) -> Plain:
    venue = facts.venue(row.version_id)
    scores = zip(facts.columns, row.scores or (), strict=False)
    error = {"kind": str(row.error_kind), "message": row.error_message or ""} if row.error_kind else None
    record: Plain = {
        "schema": SCHEMA,
        "id": str(row.id),
        "run": facts.id,
        "environment": venue.environment,
        "version": venue.version,
        "content_hash": venue.content_hash,
        "policy": facts.policy,
        "task": {
            "split": str(row.split),
            "index": row.task_index,
            "level": row.level,
            "seed": row.seed,
            **({"arguments": row.arguments} if row.arguments else {}),
        },
        "group": row.ordinal,
        "phase": str(row.phase),
        "status": str(row.status),
        "stop_reason": str(row.stop_reason) if row.stop_reason else None,
        "error": error,
        "reward": row.reward,
        "rewards": {n: {"score": score, "weight": venue.weights[n]} for n, score in scores if n in venue.weights},
        "advantage": row.advantage,
        "started_at": row.started_at.isoformat() if row.started_at else None,
        "ended_at": row.ended_at.isoformat() if row.ended_at else None,
        **{name: getattr(row, name) for name in _SAME},
    }
    return {name: value for name, value in record.items() if value is not None}


def version_named(session: Session, name: str, number: int | None) -> EnvironmentVersion | None:
    """The newest one without a number."""
    statement = (
        select(EnvironmentVersion)
        .join(EnvironmentVersion.environment)
        .where(Environment.name == name, Environment.archived_at.is_(None))
        .order_by(EnvironmentVersion.number.desc())
        .limit(1)
    )
    if number is not None:
        statement = statement.where(EnvironmentVersion.number == number)
    return session.scalars(statement).first()


def version_with_hash(session: Session, content_hash: str) -> EnvironmentVersion | None:
    statement = select(EnvironmentVersion).where(EnvironmentVersion.content_hash == content_hash)
    return session.scalars(statement.order_by(EnvironmentVersion.number.desc()).limit(1)).first()


def imported_runs(session: Session, digest: str) -> Sequence[Run]:
    """Runs that this file was imported as."""
    statement = select(Run).where(Run.configuration["source"]["hash"].astext == digest).order_by(Run.id)
    return session.scalars(statement).all()


def is_policy_used(session: Session, policy_id: uuid.UUID) -> bool:
    used = select(Run.id).where(Run.policy_id == policy_id).exists()
    kept = select(Checkpoint.id).where(Checkpoint.policy_id == policy_id).exists()
    return bool(session.scalar(select(used | kept)))
