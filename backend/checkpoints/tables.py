"""Checkpoints: the saved weights of a policy, and their exports with their passports."""

import uuid
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, ForeignKey, Index, String, Text, UniqueConstraint, false, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column, relationship

from backend.core.tables import Base, CreatedAt, Id, Labelled, text_enum
from backend.domain.checkpoints.transfer import TransferReport
from backend.domain.vocabulary import ExportForm, ExportStatus

if TYPE_CHECKING:
    from backend.policies.tables import Policy
    from backend.runs.tables import Run


class Checkpoint(Labelled, Base):
    """Saved weights of a policy at a training step. Step 0 is the policy before training."""

    __tablename__ = "checkpoints"
    __table_args__ = (
        UniqueConstraint("run_id", "stage", "step"),
        Index("ix_checkpoints_tags", "tags", postgresql_using="gin"),
        Index("ix_checkpoints_deletion_id", "deletion_id", postgresql_where=text("deletion_id IS NOT NULL")),
    )

    id: Mapped[Id]
    policy_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("policies.id", ondelete="CASCADE"), index=True)
    run_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("runs.id", ondelete="SET NULL"))
    stage: Mapped[str] = mapped_column(String(16), default="")
    """`untrained`, `sft` or `grpo`."""
    step: Mapped[int]
    artifact: Mapped[str] = mapped_column(Text)
    """Key of the folder in the artifact store: safetensors, tokenizer, config."""
    heldout_reward: Mapped[float | None]
    heldout: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """Results on the held-out tasks: mean by column, count and interval."""
    is_best: Mapped[bool] = mapped_column(default=False)
    """Highest held-out reward of its run."""
    size_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    adapter: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    """LoRA adapters only: {base, revision, dtype, quantisation, rank}. Null: all weights are stored."""
    is_kept: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether a team member marked it to be kept."""
    pruned_at: Mapped[datetime | None]
    """When its weights were deleted. Its results stay."""
    created_at: Mapped[CreatedAt]
    deletion_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("deletions.id", ondelete="RESTRICT"))
    """Deleted: nothing finds it or its exports (`core.row_access`)."""

    policy: Mapped["Policy"] = relationship(lazy="raise")

    @property
    def unusable(self) -> str | None:
        """Why it cannot be loaded; None if its weights are stored."""
        if self.pruned_at is None:
            return None
        return (
            f"The weights of {self.stage} {self.step} were pruned on {self.pruned_at:%Y-%m-%d}. Its results are kept,"
            " but it can no longer be loaded. Choose another checkpoint."
        )


class Export(Base):
    __tablename__ = "exports"

    id: Mapped[Id]
    checkpoint_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("checkpoints.id", ondelete="RESTRICT"), index=True)
    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="RESTRICT"), index=True)
    """The training run that saved the checkpoint."""
    status: Mapped[ExportStatus] = mapped_column(text_enum(ExportStatus), default=ExportStatus.QUEUED)
    form: Mapped[ExportForm] = mapped_column(text_enum(ExportForm), default=ExportForm.FULL, server_default="full")
    options: Mapped[dict[str, Any]] = mapped_column(default=dict, server_default=text("'{}'"))
    """License, GGUF type, Hub repository and so on (`ExportOptions`)."""
    reason: Mapped[str | None] = mapped_column(Text)
    artifact: Mapped[str | None] = mapped_column(Text)
    """Key of the zip in the artifact store."""
    card: Mapped[str] = mapped_column(Text, default="")
    """The model card, Markdown."""
    passport: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """Results of the verification: comparison of predictions, evaluations before and after, file hashes."""
    transfer: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    """Comparison with a reference on several environments (`TransferReport`). Null: none was requested."""
    progress: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    created_at: Mapped[CreatedAt]
    ended_at: Mapped[datetime | None]

    checkpoint: Mapped[Checkpoint] = relationship(lazy="raise")
    run: Mapped["Run"] = relationship(lazy="raise")

    @property
    def transfer_report(self) -> TransferReport | None:
        return None if self.transfer is None else TransferReport.model_validate(self.transfer)


class TransferEvaluation(Base):
    """An evaluation that belongs to the transfer report of an export."""

    __tablename__ = "transfer_evaluations"

    id: Mapped[Id]
    export_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("exports.id", ondelete="CASCADE"), index=True)
    version_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("environment_versions.id", ondelete="RESTRICT"))
    run_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("runs.id", ondelete="SET NULL"), index=True)
    """Null: it was deleted."""
    is_reference: Mapped[bool]
    """Played by the reference, not by the exported checkpoint."""

    run: Mapped["Run | None"] = relationship(lazy="raise")
