"""Rewards of runs that have ended are kept as arrays; failed rollouts have an index."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "e4b92c7f1a60"
down_revision = "d3b80f6a51c7"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    op.create_table(
        "run_rewards",
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("next_seq", sa.BigInteger(), nullable=False),
        sa.Column("rollouts", sa.LargeBinary(), nullable=False),
        sa.Column("groups", sa.LargeBinary(), nullable=False),
        sa.Column("counts", postgresql.JSONB(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id"),
    )
    for column in ("rollouts", "groups"):  # numbers: compressing them takes time and saves little
        op.execute(f"ALTER TABLE run_rewards ALTER COLUMN {column} SET STORAGE EXTERNAL")
    op.create_index("ix_rollouts_failed", "rollouts", ["run_id"], postgresql_where=sa.text("status = 'failed'"))


def downgrade() -> None:
    op.drop_index("ix_rollouts_failed", table_name="rollouts")
    op.drop_table("run_rewards")
