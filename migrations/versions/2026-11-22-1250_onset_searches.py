"""Searches for the checkpoint at which a pattern began, and what they sampled."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "2f6b9c4e8d13"
down_revision = "7d1e0c64b2f8"
branch_labels = None
depends_on = None


def _words(name: str, *values: str) -> sa.Enum:
    return sa.Enum(*values, name=name, native_enum=False, create_constraint=True, length=32)


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    op.create_table(
        "onset_searches",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("version_id", sa.UUID(), nullable=False),
        sa.Column("detector", sa.String(length=60), nullable=False),
        sa.Column("cluster", sa.String(length=200), nullable=True),
        sa.Column(
            "status",
            _words("runstatus", "queued", "running", "paused", "stopped", "completed", "failed"),
            nullable=False,
        ),
        sa.Column("tasks", sa.Integer(), nullable=False),
        sa.Column("group_size", sa.Integer(), nullable=False),
        sa.Column("temperature", sa.Double(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("last_step", sa.Integer(), nullable=False),
        sa.Column("hint_step", sa.Integer(), nullable=True),
        sa.Column("outcome", _words("outcome", "found", "at_the_first", "not_seen"), nullable=True),
        sa.Column("honest_id", sa.UUID(), nullable=True),
        sa.Column("hacking_id", sa.UUID(), nullable=True),
        sa.Column("honest_step", sa.Integer(), nullable=True),
        sa.Column("hacking_step", sa.Integer(), nullable=True),
        sa.Column("is_monotone", sa.Boolean(), nullable=True),
        sa.Column("remarks", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("asked_by", sa.UUID(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["asked_by"], ["people.id"], name=op.f("fk_onset_searches_asked_by"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["hacking_id"], ["checkpoints.id"], name=op.f("fk_onset_searches_hacking_id"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["honest_id"], ["checkpoints.id"], name=op.f("fk_onset_searches_honest_id"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_onset_searches_run_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["version_id"],
            ["environment_versions.id"],
            name=op.f("fk_onset_searches_version_id"),
            ondelete="RESTRICT",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_onset_searches")),
    )
    op.create_index("ix_onset_searches_run_id_id", "onset_searches", ["run_id", "id"], unique=False)
    op.create_table(
        "onset_samples",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("search_id", sa.UUID(), nullable=False),
        sa.Column("checkpoint_id", sa.UUID(), nullable=True),
        sa.Column("run_id", sa.UUID(), nullable=True),
        sa.Column("is_base", sa.Boolean(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("rollouts", sa.Integer(), nullable=True),
        sa.Column("flagged", sa.Integer(), nullable=True),
        sa.Column("chance", sa.Double(), nullable=True),
        sa.Column("is_above", sa.Boolean(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["checkpoint_id"], ["checkpoints.id"], name=op.f("fk_onset_samples_checkpoint_id"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_onset_samples_run_id"), ondelete="SET NULL"),
        sa.ForeignKeyConstraint(
            ["search_id"], ["onset_searches.id"], name=op.f("fk_onset_samples_search_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_onset_samples")),
        sa.UniqueConstraint("search_id", "checkpoint_id", name=op.f("uq_onset_samples_search_id_checkpoint_id")),
    )
    op.create_index(op.f("ix_onset_samples_run_id"), "onset_samples", ["run_id"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_onset_samples_run_id"), table_name="onset_samples")
    op.drop_table("onset_samples")
    op.drop_index("ix_onset_searches_run_id_id", table_name="onset_searches")
    op.drop_table("onset_searches")
