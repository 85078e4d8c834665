"""Runs, their metric points and their log."""

import uuid
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    UUID,
    BigInteger,
    Connection,
    ForeignKey,
    Index,
    Integer,
    String,
    Text,
    bindparam,
    event,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, DOUBLE_PRECISION
from sqlalchemy.engine.default import DefaultExecutionContext
from sqlalchemy.orm import Mapped, Mapper, mapped_column, relationship

from backend.core.tables import Base, CreatedAt, Id, Labelled, text_enum
from backend.domain.projects.access import DEFAULT_PROJECT
from backend.domain.vocabulary import RunKind, RunStatus
from backend.errors import Conflict

if TYPE_CHECKING:
    from backend.checkpoints.tables import Checkpoint
    from backend.environments.tables import EnvironmentVersion
    from backend.policies.tables import Policy
    from backend.team.tables import Person


_HOME = text("""
    WITH used AS (
        SELECT project_id, 2 AS preference FROM policies WHERE id = :policy_id
        UNION ALL
        SELECT project_id, 3 FROM environments JOIN environment_versions v ON v.environment_id = environments.id
        WHERE v.id = :version_id
    )
    SELECT coalesce(
        (SELECT project_id FROM runs WHERE id = :source_run_id),
        (SELECT project_id FROM used JOIN projects ON projects.id = project_id AND is_restricted
         ORDER BY preference LIMIT 1),
        (SELECT project_id FROM used WHERE preference = 3)
    )
""")
_OF_DELETED = text("""
    SELECT deletion_id FROM environments JOIN environment_versions v ON v.environment_id = environments.id
    WHERE v.id = :version_id
""")
_CROSSING = text("""
    WITH restricted AS (
        SELECT v.id AS version_id, NULL::uuid AS policy_id, e.name, p.id, p.name AS project FROM projects p
        JOIN environments e ON e.project_id = p.id JOIN environment_versions v ON v.environment_id = e.id
        WHERE p.is_restricted
        UNION ALL
        SELECT NULL, i.id, i.name, p.id, p.name FROM projects p JOIN policies i ON i.project_id = p.id
        WHERE p.is_restricted
    )
    SELECT runs.name, restricted.name, restricted.project FROM runs
    JOIN restricted ON runs.version_id = restricted.version_id OR runs.policy_id = restricted.policy_id
    WHERE runs.project_id <> restricted.id AND runs.id = coalesce(:run_id, runs.id)
    LIMIT 1
""").bindparams(bindparam("run_id", type_=UUID))


class UsedAcrossProjects(Conflict):
    """A run uses an environment or policy of a restricted project to which it does not belong."""


def refuse_crossing(connection: Connection, run_id: uuid.UUID | None = None) -> None:
    """Refuse a run, or a state of all runs, in which people who see a run may not see what it uses."""
    if found := connection.execute(_CROSSING, {"run_id": run_id}).first():
        run, item, project = found
        raise UsedAcrossProjects(
            f"The run {run} uses {item}, which belongs to the restricted project {project}, but the run belongs to"
            f" another project. Keep both in {project}, or let the team see it."
        )


def _home_of(context: DefaultExecutionContext) -> uuid.UUID | None:
    """Return the project of a new run: its source's, that of a restricted policy, or its environment's."""
    given = context.get_current_parameters()  # type: ignore[no-untyped-call]
    names = ("source_run_id", "policy_id", "version_id")
    home: uuid.UUID | None = context.connection.scalar(_HOME, {name: given.get(name) for name in names})
    return home


class Run(Labelled, Base):
    """An evaluation, a training run, a check or hand play."""

    __tablename__ = "runs"
    __table_args__ = (
        Index("ix_runs_created_at_id", "created_at", "id"),
        Index("ix_runs_project_id_created_at_id", "project_id", "created_at", "id"),
        Index("ix_runs_is_pinned_created_at_id", "is_pinned", "created_at", "id"),
        Index("ix_runs_name_id", "name", "id"),
        Index("ix_runs_tags", "tags", postgresql_using="gin"),
        Index("ix_runs_deletion_id", "deletion_id", postgresql_where=text("deletion_id IS NOT NULL")),
    )

    id: Mapped[Id]
    kind: Mapped[RunKind] = mapped_column(text_enum(RunKind), index=True)
    name: Mapped[str] = mapped_column(String(200))
    status: Mapped[RunStatus] = mapped_column(text_enum(RunStatus), default=RunStatus.QUEUED, index=True)
    version_id: Mapped[uuid.UUID] = mapped_column(
        ForeignKey("environment_versions.id", ondelete="RESTRICT"), index=True
    )
    policy_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("policies.id", ondelete="RESTRICT"), index=True)
    checkpoint_id: Mapped[uuid.UUID | None] = mapped_column(
        ForeignKey("checkpoints.id", ondelete="SET NULL", use_alter=True), index=True
    )
    """Evaluations: the checkpoint that acts. Training: the checkpoint to start from."""
    project_id: Mapped[uuid.UUID] = mapped_column(
        ForeignKey("projects.id", ondelete="RESTRICT"), default=_home_of, server_default=text(f"'{DEFAULT_PROJECT}'")
    )
    configuration: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """With every default."""
    columns: Mapped[list[str]] = mapped_column(ARRAY(Text), default=list)
    """Reward columns in declared order: the order of `Rollout.columns`."""
    weights: Mapped[list[float]] = mapped_column(ARRAY(DOUBLE_PRECISION), default=list)
    """Weights of `columns`, in the same order."""
    seed: Mapped[int] = mapped_column(BigInteger, default=0)
    stop_requested_at: Mapped[datetime | None]
    reason: Mapped[str | None] = mapped_column(Text)
    """Why it failed, paused or stopped, shown to people."""
    progress: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """{phase, done, total, rate, message}"""
    summary: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """Final figures, by kind of run."""
    next_seq: Mapped[int] = mapped_column(BigInteger, default=1)
    """Number of the next rollout, taken under the row's lock, so that readers see no gaps."""
    attempt: Mapped[int] = mapped_column(Integer, default=0)
    """Number of times that a worker began it."""
    source_run_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("runs.id", ondelete="SET NULL"), index=True)
    """The run that this one rescores, replays, repeats or branches from."""
    branch_step: Mapped[int | None]
    """Branches of a training run: the source's GRPO step whose weights it started from."""
    archived_at: Mapped[datetime | None]
    deletion_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("deletions.id", ondelete="RESTRICT"))
    """Deleted: nothing finds it or what belongs to it (`core.row_access`)."""
    created_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    created_at: Mapped[CreatedAt]
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]

    version: Mapped["EnvironmentVersion"] = relationship(lazy="raise")
    policy: Mapped["Policy | None"] = relationship(lazy="raise")
    checkpoint: Mapped["Checkpoint | None"] = relationship(lazy="raise", foreign_keys=[checkpoint_id])
    creator: Mapped["Person | None"] = relationship(lazy="raise")

    @property
    def missing(self) -> int:
        """Failed rollouts of a finished evaluation. Resuming plays them again."""
        is_played_here = self.kind is RunKind.EVALUATION and not self.is_imported
        return int(self.summary.get("failed") or 0) if is_played_here else 0

    @property
    def is_imported(self) -> bool:
        """Its rollouts were imported."""
        return "source" in self.configuration

    @property
    def seconds_left(self) -> float | None:
        """The worker's estimate, else by the rate so far."""
        progress = self.progress
        if (estimate := progress.get("seconds_left")) is not None:
            return float(estimate)
        left = int(progress.get("total") or 0) - int(progress.get("done") or 0)
        rate = progress.get("rate")
        return left / float(rate) if rate and left > 0 else None

    @property
    def can_resume(self) -> bool:
        """It ended early, or some rollouts failed."""
        stopped = {RunStatus.STOPPED, RunStatus.PAUSED, RunStatus.FAILED}
        return self.status in stopped or (self.status is RunStatus.COMPLETED and self.missing > 0)


@event.listens_for(Run, "after_insert")
def _refuse_crossing_run(mapper: Mapper[Run], connection: Connection, run: Run) -> None:
    refuse_crossing(connection, run.id)
    if run.deletion_id is None and connection.scalar(_OF_DELETED, {"version_id": run.version_id}):
        raise Conflict("Someone deleted this environment in the meantime.")


class MetricPoint(Base):
    """One value of one curve. Append-only; a resumed run writes the same step again under its new attempt."""

    __tablename__ = "metric_points"

    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(String(120), primary_key=True)
    """`reward`, `columns/win`, `heldout/reward`, `entropy`, …"""
    step: Mapped[int] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True, default=1)
    value: Mapped[float | None]
    """None for NaN and infinity."""
    at: Mapped[CreatedAt]


class RunLogLine(Base):
    __tablename__ = "run_log_lines"
    __table_args__ = (Index("ix_run_log_lines_run_id_id", "run_id", "id"),)

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=True)
    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    level: Mapped[str] = mapped_column(String(10))
    message: Mapped[str] = mapped_column(Text)
