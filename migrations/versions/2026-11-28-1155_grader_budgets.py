"""Budgets of graders, and the samples of rollouts that they choose."""

import sqlalchemy as sa
from alembic import op

revision = "c4a7e19d52f8"
down_revision = "5b7e0c94d1a3"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    op.create_table(
        "grader_budgets",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("grader_id", sa.Uuid(), nullable=False),
        sa.Column("environment_id", sa.Uuid(), nullable=False),
        sa.Column("rollouts_per_run", sa.Integer(), nullable=False),
        sa.Column("rollouts_per_day", sa.Integer(), nullable=False),
        sa.Column("cost_per_run", sa.DOUBLE_PRECISION(), nullable=True),
        sa.Column("cost_per_day", sa.DOUBLE_PRECISION(), nullable=True),
        sa.Column("changed_by", sa.Uuid(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["grader_id"], ["graders.id"], name=op.f("fk_grader_budgets_grader_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["environments.id"], name=op.f("fk_grader_budgets_environment_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["changed_by"], ["people.id"], name=op.f("fk_grader_budgets_changed_by"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_grader_budgets")),
        sa.UniqueConstraint("grader_id", "environment_id", name=op.f("uq_grader_budgets_grader_id_environment_id")),
    )
    op.create_index(op.f("ix_grader_budgets_environment_id"), "grader_budgets", ["environment_id"])
    op.create_table(
        "grader_samples",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("grader_run_id", sa.Uuid(), nullable=False),
        sa.Column("rollout_id", sa.Uuid(), nullable=False),
        sa.Column("batch", sa.BigInteger(), nullable=False),
        sa.Column("size", sa.DOUBLE_PRECISION(), nullable=False),
        sa.Column("priority", sa.DOUBLE_PRECISION(), nullable=False),
        sa.Column("chance", sa.DOUBLE_PRECISION(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["grader_run_id"], ["grader_runs.id"], name=op.f("fk_grader_samples_grader_run_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["rollout_id"], ["rollouts.id"], name=op.f("fk_grader_samples_rollout_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_grader_samples")),
        sa.UniqueConstraint("grader_run_id", "rollout_id", name=op.f("uq_grader_samples_grader_run_id_rollout_id")),
    )
    op.create_index(op.f("ix_grader_samples_rollout_id"), "grader_samples", ["rollout_id"])
    op.add_column("grader_runs", sa.Column("is_sampled", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.add_column("grader_runs", sa.Column("drawn_seq", sa.BigInteger(), server_default=sa.text("0"), nullable=False))


def downgrade() -> None:
    for name in ("drawn_seq", "is_sampled"):
        op.drop_column("grader_runs", name)
    op.drop_table("grader_samples")
    op.drop_table("grader_budgets")
