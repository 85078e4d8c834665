"""The base of all tables: names of constraints, column types and the text enum; the tables of jobs and workers.

Each slice keeps its tables in `tables.py` and names classes of other slices as strings only. Mappers are configured
after the tables of all slices are imported.
"""

import uuid
from collections.abc import Collection
from datetime import datetime
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar

from sqlalchemy import (
    ColumnElement,
    DateTime,
    Enum,
    ForeignKey,
    Index,
    MetaData,
    String,
    Text,
    any_,
    event,
    false,
    func,
    literal,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, UUID
from sqlalchemy.orm import DeclarativeBase, Mapped, Mapper, mapped_column

from backend.domain.ids import new_id
from backend.domain.vocabulary import JobStatus, Queue


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        dict[str, Any]: JSONB,
        list[dict[str, Any]]: JSONB,
        datetime: DateTime(timezone=True),
    }


def load_tables() -> MetaData:
    """Import the tables of every slice of the backend and return the whole schema."""
    for file in sorted(Path(__file__).parent.parent.glob("*/tables.py")):
        import_module(f"backend.{file.parent.name}.tables")
    return Base.metadata


event.listen(Mapper, "before_configured", load_tables)


def text_enum(kind: type[StrEnum]) -> Enum:
    """Stored as text with a CHECK."""
    return Enum(
        kind,
        native_enum=False,
        create_constraint=True,
        length=32,
        name=kind.__name__.lower(),
        values_callable=lambda values: [str(value) for value in values],
        validate_strings=True,
    )


def is_among(column: Any, ids: Collection[uuid.UUID]) -> ColumnElement[bool]:
    """Compare with thousands of ids as one array: `in_` has a parameter for each, which takes seconds."""
    found: ColumnElement[bool] = column == any_(literal(list(ids), ARRAY(UUID(as_uuid=True))))
    return found


Id = Annotated[uuid.UUID, mapped_column(UUID(as_uuid=True), primary_key=True, default=new_id)]
CreatedAt = Annotated[datetime, mapped_column(server_default=func.now())]


class Labelled:
    """Tags, a note and a pin, which people give a row to find it again."""

    tags: Mapped[list[str]] = mapped_column(ARRAY(Text), default=list, server_default=text("'{}'"))
    note: Mapped[str] = mapped_column(Text, default="", server_default="")
    is_pinned: Mapped[bool] = mapped_column(default=False, server_default=false())
    """For everyone who sees the row."""


class Job(Base):
    """One piece of work for a worker. The row is the truth; its message is a wake-up."""

    __tablename__ = "jobs"
    __table_args__ = (Index("ix_jobs_status_sent_at", "status", "sent_at"),)

    id: Mapped[Id]
    name: Mapped[str] = mapped_column(String(80))
    """`evaluations.run`"""
    queue: Mapped[Queue] = mapped_column(text_enum(Queue))
    run_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    arguments: Mapped[dict[str, Any]] = mapped_column(default=dict)
    status: Mapped[JobStatus] = mapped_column(text_enum(JobStatus), default=JobStatus.QUEUED)
    attempts: Mapped[int] = mapped_column(default=0)
    max_attempts: Mapped[int] = mapped_column(default=5)
    lease_owner: Mapped[str | None] = mapped_column(String(200))
    lease_until: Mapped[datetime | None] = mapped_column(index=True)
    error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[CreatedAt]
    sent_at: Mapped[CreatedAt]
    """When its last wake-up left."""
    ended_at: Mapped[datetime | None]


class Worker(Base):
    """The last heartbeat of a worker process."""

    __tablename__ = "workers"

    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    queues: Mapped[list[str]] = mapped_column(ARRAY(Text))
    capabilities: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """{flavor, cpus, memory_mb, torch, trl, gpus: […], launcher}"""
    seen_at: Mapped[CreatedAt]
