"""Environments, their drafts, imports, immutable versions and the versions' certificates."""

import uuid
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import ForeignKey, Index, Integer, LargeBinary, String, Text, UniqueConstraint, select, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import Mapped, column_property, mapped_column, relationship

from backend.core.tables import Base, CreatedAt, Id, Labelled, text_enum
from backend.domain.environments.manifest import Manifest
from backend.domain.projects.access import DEFAULT_PROJECT
from backend.domain.vocabulary import CheckStatus, RunStatus

if TYPE_CHECKING:
    from backend.team.tables import Person


class Environment(Labelled, Base):
    __tablename__ = "environments"
    __table_args__ = (Index("ix_environments_tags", "tags", postgresql_using="gin"),)

    id: Mapped[Id]
    name: Mapped[str] = mapped_column(String(40), unique=True)
    description: Mapped[str] = mapped_column(Text, default="")
    is_built_in: Mapped[bool] = mapped_column(default=False)
    project_id: Mapped[uuid.UUID] = mapped_column(
        ForeignKey("projects.id", ondelete="RESTRICT"),
        default=DEFAULT_PROJECT,
        server_default=text(f"'{DEFAULT_PROJECT}'"),
        index=True,
    )
    created_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    created_at: Mapped[CreatedAt]
    archived_at: Mapped[datetime | None]
    deletion_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("deletions.id", ondelete="RESTRICT"))
    """Deleted: nothing finds it or what belongs to it (`core.row_access`)."""


class EnvironmentDraft(Base):
    """The draft of an environment. `revision` detects conflicting edits."""

    __tablename__ = "environment_drafts"

    environment_id: Mapped[uuid.UUID] = mapped_column(
        ForeignKey("environments.id", ondelete="CASCADE"), primary_key=True
    )
    files: Mapped[dict[str, str]] = mapped_column(JSONB)
    """Text by path."""
    revision: Mapped[int] = mapped_column(Integer, default=1)
    updated_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    updated_at: Mapped[CreatedAt]


class DraftTrial(Base):
    """A person trying the draft out: one a person and environment. The replies are replayed on the draft as saved."""

    __tablename__ = "draft_trials"
    __table_args__ = (UniqueConstraint("environment_id", "person_id"),)

    id: Mapped[Id]
    environment_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("environments.id", ondelete="CASCADE"))
    person_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("people.id", ondelete="CASCADE"))
    revision: Mapped[int] = mapped_column(Integer, default=1)
    """Number of requests; answers to older ones are discarded."""
    is_waiting: Mapped[bool] = mapped_column(default=True)
    task: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """{split, index, level, seed}"""
    replies: Mapped[list[str]] = mapped_column(ARRAY(Text), default=list)
    draft_revision: Mapped[int] = mapped_column(Integer, default=0)
    """Revision of the draft that answered."""
    answer: Mapped[dict[str, Any]] = mapped_column(default=dict, deferred=True)
    """The environment's answers to all replies, or its error."""
    updated_at: Mapped[CreatedAt]


class EnvironmentVersion(Base):
    """Immutable. Every run pins one."""

    __tablename__ = "environment_versions"
    __table_args__ = (UniqueConstraint("environment_id", "number"),)

    id: Mapped[Id]
    environment_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("environments.id", ondelete="RESTRICT"))
    number: Mapped[int]
    content_hash: Mapped[str] = mapped_column(String(64), index=True)
    files: Mapped[dict[str, str]] = mapped_column(JSONB, deferred=True)
    manifest: Mapped[dict[str, Any]]
    """The validated manifest as JSON; `typed_manifest` reads it."""
    notes: Mapped[str] = mapped_column(Text, default="")
    published_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    published_at: Mapped[CreatedAt]

    environment: Mapped[Environment] = relationship(lazy="raise")
    publisher: Mapped["Person | None"] = relationship(lazy="raise")

    if TYPE_CHECKING:
        certificate: Mapped[CheckStatus | None]
        """The status of its newest certificate: every page that names a version shows it."""

    @property
    def title(self) -> str:
        """`tictactoe v3`, with the environment loaded."""
        return f"{self.environment.name} v{self.number}"

    @property
    def typed_manifest(self) -> Manifest:
        return Manifest.model_validate(self.manifest)


class Certificate(Base):
    """The result of the environment checks for one version."""

    __tablename__ = "certificates"

    id: Mapped[Id]
    version_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("environment_versions.id", ondelete="CASCADE"), index=True)
    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), unique=True)
    status: Mapped[CheckStatus] = mapped_column(text_enum(CheckStatus))
    results: Mapped[list[dict[str, Any]]]
    """Each `CheckResult` as JSON, in the order checked."""
    created_at: Mapped[CreatedAt]

    version: Mapped[EnvironmentVersion] = relationship(lazy="raise")


EnvironmentVersion.certificate = column_property(
    select(Certificate.status)
    .where(Certificate.version_id == EnvironmentVersion.id)
    .order_by(Certificate.created_at.desc(), Certificate.id.desc())
    .limit(1)
    .correlate_except(Certificate)
    .scalar_subquery()
)


class SigningKey(Base):
    """An Ed25519 key that signs certificates. The newest signs; older ones are kept as a record."""

    __tablename__ = "signing_keys"

    id: Mapped[Id]
    public_key: Mapped[str] = mapped_column(Text)
    """PEM."""
    private_key: Mapped[bytes] = mapped_column(LargeBinary)
    """Base64 of the 32 bytes, sealed."""
    created_at: Mapped[CreatedAt]


class NetworkGrant(Base):
    """An administrator lets servers of this content reach the network."""

    __tablename__ = "network_grants"

    content_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    granted_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    created_at: Mapped[CreatedAt]


class EnvironmentImport(Base):
    """One package that was sent. It becomes an environment when its author says so."""

    __tablename__ = "environment_imports"
    __table_args__ = (Index("ix_environment_imports_created_at_id", "created_at", "id"),)

    id: Mapped[Id]
    name: Mapped[str] = mapped_column(String(40))
    """Name of the future environment."""
    kind: Mapped[str] = mapped_column(String(32))
    """`PackageKind`"""
    source: Mapped[str] = mapped_column(Text)
    """Description of its source."""
    files: Mapped[dict[str, str]] = mapped_column(JSONB, deferred=True)
    """Ready to run; the manifest without a `proctor:` block."""
    manifest: Mapped[dict[str, Any]]
    """The manifest without the block."""
    block: Mapped[str] = mapped_column(Text, default="")
    """The `proctor:` block as YAML: proposed, then as its author left it."""
    columns_from: Mapped[str | None] = mapped_column(Text)
    status: Mapped[RunStatus] = mapped_column(text_enum(RunStatus), default=RunStatus.QUEUED)
    phase: Mapped[str] = mapped_column(Text, default="")
    """Current step, described for people."""
    report: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """`ImportReport` as JSON."""
    build_log: Mapped[str] = mapped_column(Text, default="")
    environment_id: Mapped[uuid.UUID | None] = mapped_column(
        ForeignKey("environments.id", ondelete="SET NULL"), index=True
    )
    created_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    created_at: Mapped[CreatedAt]
    ended_at: Mapped[datetime | None]

    environment: Mapped[Environment | None] = relationship(lazy="raise")
    creator: Mapped["Person | None"] = relationship(lazy="raise")
