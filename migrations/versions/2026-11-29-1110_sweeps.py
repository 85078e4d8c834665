"""Sweeps over training settings, and their trials."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "d3b80f6a51c7"
down_revision = "d92f5b6e0c17"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    op.create_table(
        "sweeps",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("name", sa.String(60), nullable=False),
        sa.Column(
            "status",
            sa.Enum(
                *("queued", "running", "paused", "stopped", "completed", "failed"),
                name="runstatus",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("project_id", sa.UUID(), nullable=False),
        sa.Column("version_id", sa.UUID(), nullable=False),
        sa.Column("configuration", postgresql.JSONB(), nullable=False),
        sa.Column("without_certificate", sa.Text(), nullable=True),
        sa.Column("settings", postgresql.JSONB(), nullable=False),
        sa.Column("importance", postgresql.JSONB(none_as_null=True), nullable=True),
        sa.Column("created_by", sa.UUID(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["version_id"], ["environment_versions.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["created_by"], ["people.id"], ondelete="SET NULL"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_sweeps_project_id_id", "sweeps", ["project_id", "id"])
    op.create_index("ix_sweeps_version_id", "sweeps", ["version_id"])
    op.create_table(
        "sweep_trials",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("sweep_id", sa.UUID(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("values", postgresql.JSONB(), nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=True),
        sa.Column(
            "state",
            sa.Enum(
                *("running", "completed", "pruned", "stopped", "failed"),
                name="trialstate",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("is_pruned", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("reward", sa.DOUBLE_PRECISION(), nullable=True),
        sa.Column("low", sa.DOUBLE_PRECISION(), nullable=True),
        sa.Column("high", sa.DOUBLE_PRECISION(), nullable=True),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("last_step", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["sweep_id"], ["sweeps.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="SET NULL"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("sweep_id", "number"),
    )
    op.create_index("ix_sweep_trials_run_id", "sweep_trials", ["run_id"])


def downgrade() -> None:
    op.drop_table("sweep_trials")
    op.drop_table("sweeps")
