"""Export a run's rollouts: read whole and in order by a database cursor, and written as a file while it downloads."""

from collections.abc import Iterator
from enum import StrEnum
from functools import partial
from importlib.metadata import version as package_version
from typing import Any

import orjson
from sqlalchemy import Select, distinct, func, select
from sqlalchemy.orm import Session

from backend.domain.environments.manifest import Manifest
from backend.domain.rollouts.fields import MEASURED
from backend.domain.rollouts.record import SCHEMA
from backend.domain.vocabulary import RolloutStatus, Split, Verdict
from backend.operations.schemas import Download
from backend.review.tables import NEWEST_VERDICTS, VerdictRecord
from backend.rollouts.formats import huggingface, inspect_log, native, trainers, verifiers_v0, verifiers_v1
from backend.rollouts.formats.streams import PlayedVersion, Record, RunFacts, group_of, outgoing, write_lines
from backend.rollouts.queries import matching
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.queries import versions_of
from backend.runs.tables import Run

ROWS = 100
"""Rows that are fetched at a time."""
_SAME = (
    *("training_step", "attempts", "member", "metrics", "opening", "steps", "messages", "is_truncated", "tokens"),
    *("seats", "cost", "reward", "advantage"),
    *MEASURED,
)
"""Columns that records hold unchanged."""


class ExportFormat(StrEnum):
    JSONL = "jsonl"
    PARQUET = "parquet"
    HUGGINGFACE = "huggingface"
    VERIFIERS_V0 = "verifiers_v0"
    VERIFIERS_V1 = "verifiers_v1"
    INSPECT = "inspect"
    VERL = "verl"
    SKYRL = "skyrl"
    PRIME_RL = "prime_rl"


FILE_TYPES = {
    ExportFormat.JSONL: ("JSONL", "one rollout per line, complete", ".jsonl", "application/x-ndjson"),
    ExportFormat.PARQUET: ("Parquet", "for pandas, DuckDB, Polars", ".parquet", "application/vnd.apache.parquet"),
    ExportFormat.HUGGINGFACE: ("Hugging Face", "a zipped folder for datasets", ".zip", "application/zip"),
    ExportFormat.VERIFIERS_V0: ("verifiers 0.3", "results.jsonl and metadata.json, zipped", ".zip", "application/zip"),
    ExportFormat.VERIFIERS_V1: ("verifiers 0.4", "traces.jsonl", ".jsonl", "application/x-ndjson"),
    ExportFormat.INSPECT: ("Inspect", "an .eval log", ".eval", "application/zip"),
    ExportFormat.VERL: ("verl", "zipped Parquet by task split, for RL and SFT", ".zip", "application/zip"),
    ExportFormat.SKYRL: ("SkyRL", "zipped Parquet by task split, for RL and SFT", ".zip", "application/zip"),
    ExportFormat.PRIME_RL: ("prime-rl", "a zipped dataset, and a batch per training step", ".zip", "application/zip"),
}
"""Label, note, suffix and media type."""
LAYOUTS = {
    ExportFormat.VERL: trainers.VERL,
    ExportFormat.SKYRL: trainers.SKYRL,
    ExportFormat.PRIME_RL: trainers.PRIME_RL,
}


def export_rollouts(session: Session, run: Run, kind: ExportFormat, where: str = "") -> Download:
    """Export the rollouts that pass a filter. Raises InvalidInput for a wrong filter before the first byte is sent."""
    facts = facts_of(session, run, where.strip())
    played = select(Task.split).distinct().join(Group, Group.task_id == Task.id)
    played = played.join(Rollout, Rollout.group_id == Group.id)
    found = set(session.scalars(_filtered(session, played, run, where)))
    splits = [split for split in Split if split in found] or [Split.HELDOUT]

    def content(session: Session) -> Iterator[bytes]:
        read = partial(records, session, run, facts)
        match kind:
            case ExportFormat.JSONL:
                return outgoing(write_lines, map(orjson.dumps, read()))
            case ExportFormat.PARQUET:
                return outgoing(native.write_parquet, facts, read())
            case ExportFormat.HUGGINGFACE:
                return outgoing(huggingface.write, facts, splits, lambda split: read(split=split))
            case ExportFormat.VERIFIERS_V0:
                return outgoing(verifiers_v0.write, facts, read())
            case ExportFormat.VERIFIERS_V1:
                episodes = (verifiers_v1.episode_of(record, facts) for record in read())
                return outgoing(write_lines, map(orjson.dumps, episodes))
            case ExportFormat.INSPECT:
                return outgoing(inspect_log.write, facts, read())
            case ExportFormat.VERL | ExportFormat.SKYRL | ExportFormat.PRIME_RL:
                rows = partial(read, for_training=True)
                means = _group_means(session, run)
                return outgoing(trainers.write, LAYOUTS[kind], facts, splits, lambda split: rows(split=split), means)

    stem = "traces" if kind is ExportFormat.VERIFIERS_V1 else f"{facts.environment}-{kind}"
    _, _, suffix, media_type = FILE_TYPES[kind]
    return Download(f"{stem}-{run.id.hex[-8:]}{suffix}", media_type, content)


def facts_of(session: Session, run: Run, where: str = "") -> RunFacts:
    """Facts about a run, which is loaded with its version, environment and policy."""
    counted = select(func.count(distinct(Group.task_id)), func.coalesce(func.max(Rollout.member), 0) + 1)
    joined = counted.join(Rollout, Rollout.group_id == Group.id)
    tasks, members = session.execute(joined.where(Group.run_id == run.id)).one()
    policy = run.policy
    sampling = dict(run.configuration.get("sampling") or {})
    if "max_tokens_per_turn" in sampling:
        sampling["max_tokens"] = sampling.pop("max_tokens_per_turn")
    versions = {}
    for version in versions_of(session, run) if run.configuration.get("mix") else ():
        weights = {column.name: column.weight for column in Manifest.model_validate(version.manifest).columns}
        name, number = version.environment.name, version.number
        versions[str(version.id)] = PlayedVersion(name, number, version.content_hash, weights)
    return RunFacts(
        id=str(run.id),
        name=run.name,
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
        created_at=run.created_at.isoformat(),
        started_at=(run.started_at or run.created_at).isoformat(),
        ended_at=run.ended_at.isoformat() if run.ended_at else "",
        proctor=package_version("proctor"),
        where=where,
        versions=versions,
    )


def records(
    session: Session, run: Run, facts: RunFacts, *, split: Split | None = None, for_training: bool = False
) -> Iterator[Record]:
    """Yield the rollouts that pass the filter of `facts` as JSON, in the order of storing.

    `for_training`: only completed ones that no one reviewed as a hack or broken reward, ordered by training step.
    """
    own = ("id", "phase", "status", "stop_reason", "error_kind", "error_message", "started_at", "ended_at")
    task = (Task.version_id, Task.split, Task.index.label("task_index"), Task.level, Task.seed, Task.arguments)
    columns = [getattr(Rollout, name) for name in (*own, *_SAME)]
    statement: Select[Any] = select(*columns, Rollout.columns.label("scores"), Group.ordinal, *task)
    statement = statement.join(Group, Group.id == Rollout.group_id).join(Task, Task.id == Group.task_id)
    statement = _filtered(session, statement, run, facts.where)
    if for_training:
        latest = NEWEST_VERDICTS.where(VerdictRecord.run_id == run.id).subquery()
        bad = select(latest.c.rollout_id).where(latest.c.verdict.in_((Verdict.HACK, Verdict.BROKEN_REWARD)))
        statement = statement.where(Rollout.status == RolloutStatus.COMPLETED, Rollout.id.not_in(bad))
        statement = statement.order_by(func.coalesce(Rollout.training_step, 0))
    statement = statement.order_by(Rollout.seq)
    if split is not None:
        statement = statement.where(Task.split == split)
    weights = dict(zip(facts.columns, facts.weights, strict=True))
    played = PlayedVersion(facts.environment, facts.version, facts.content_hash, weights)
    for row in session.execute(statement.execution_options(yield_per=ROWS)):
        version = facts.versions.get(str(row.version_id), played)
        scores = zip(facts.columns, row.scores or (), strict=False)
        place = {"split": str(row.split), "index": row.task_index, "level": row.level, "seed": row.seed}
        record: Record = {
            "schema": SCHEMA,
            "id": str(row.id),
            "run": facts.id,
            "environment": version.environment,
            "version": version.version,
            "content_hash": version.content_hash,
            "policy": facts.policy,
            "task": place | ({"arguments": row.arguments} if row.arguments else {}),
            "group": row.ordinal,
            "phase": str(row.phase),
            "status": str(row.status),
            "stop_reason": str(row.stop_reason) if row.stop_reason else None,
            "error": {"kind": str(row.error_kind), "message": row.error_message or ""} if row.error_kind else None,
            "rewards": {
                n: {"score": score, "weight": version.weights[n]} for n, score in scores if n in version.weights
            },
            "started_at": row.started_at.isoformat() if row.started_at else None,
            "ended_at": row.ended_at.isoformat() if row.ended_at else None,
            **{name: getattr(row, name) for name in _SAME},
        }
        yield {name: value for name, value in record.items() if value is not None}


def _group_means(session: Session, run: Run) -> dict[str, float]:
    """The mean reward of the completed rollouts of each group, whether they pass the filter or not."""
    key = (Group.phase, Group.training_step, Group.ordinal.label("group"))
    mean = select(*key, func.avg(Rollout.reward).label("mean")).join(Rollout, Rollout.group_id == Group.id)
    mean = mean.where(Rollout.run_id == run.id, Rollout.status == RolloutStatus.COMPLETED).group_by(*key)
    rows = session.execute(mean).mappings()
    return {group_of(dict(row)): float(row["mean"]) for row in rows if row["mean"] is not None}


def _filtered(session: Session, statement: Select[Any], run: Run, where: str) -> Select[Any]:
    statement = statement.where(Rollout.run_id == run.id)
    return statement.where(Rollout.id.in_(matching(session, run, where))) if where.strip() else statement
