"""Policies and checkpoints: what acts, and the saved weights of it."""

import uuid
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, LargeBinary, String, Text, UniqueConstraint, false
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column, relationship

from backend.db.models.base import Base, CreatedAt, Id, text_enum
from backend.domain.vocabulary import PolicyKind


class Policy(Base):
    __tablename__ = "policies"

    id: Mapped[Id]
    name: Mapped[str] = mapped_column(String(100), unique=True)
    kind: Mapped[PolicyKind] = mapped_column(text_enum(PolicyKind))
    description: Mapped[str] = mapped_column(Text, default="")
    configuration: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """scripted: {script, constant?}. openai_api: {base_url, model, …}. local: {architecture, …} or {base}."""
    secret: Mapped[bytes | None] = mapped_column(LargeBinary)
    """The endpoint's key, encrypted and bound to its base URL. Write-only."""
    created_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    created_at: Mapped[CreatedAt]
    deleted_at: Mapped[datetime | None]


class Checkpoint(Base):
    """Saved weights of a policy at a training step. Step 0 is the policy before training."""

    __tablename__ = "checkpoints"
    __table_args__ = (UniqueConstraint("run_id", "stage", "step"),)

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
    """Mean by column, count and interval on the held-out tasks."""
    is_best: Mapped[bool] = mapped_column(default=False)
    """Highest held-out reward of its run."""
    size_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    adapter: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    """Where the weights are a LoRA: {base, revision, dtype, quantisation, rank}. Null: all weights are there."""
    is_kept: Mapped[bool] = mapped_column(default=False, server_default=false())
    """A person wants it kept, whatever the rule says."""
    pruned_at: Mapped[datetime | None]
    """Its weights were deleted; what it reached stays."""
    created_at: Mapped[CreatedAt]

    policy: Mapped[Policy] = relationship(lazy="raise")

    @property
    def unusable(self) -> str | None:
        """Why nothing can act with it, in words; None where its weights are there."""
        if self.pruned_at is None:
            return None
        return (
            f"The weights of {self.stage} {self.step} were pruned on {self.pruned_at:%Y-%m-%d}. What it reached is"
            " kept, but it cannot be loaded any more: choose another checkpoint."
        )
