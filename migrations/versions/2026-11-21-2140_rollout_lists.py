"""Lists of rollouts: an index that holds what they filter and sort by, and an index of what was said."""

import sqlalchemy as sa
from alembic import op

revision = "5c1d7c0be2a4"
down_revision = "9da77917eb25"
branch_labels = None
depends_on = None

LISTED = [
    "id", "group_id", "member", "phase", "training_step", "level", "status", "stop_reason", "error_kind", "attempts",
    "reward", "columns", "turns", "tokens_in", "tokens_out", "is_truncated", "advantage", "policy_seconds",
    "environment_seconds", "queue_seconds", "cost", "is_demonstration",
]  # fmt: skip


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    op.drop_index("ix_rollouts_run_id_reward", table_name="rollouts")
    op.drop_index("ix_rollouts_run_id_phase_training_step", table_name="rollouts")
    op.drop_index("ix_rollouts_run_id_seq", table_name="rollouts")
    op.create_index("ix_rollouts_run_id_seq", "rollouts", ["run_id", "seq"], unique=True, postgresql_include=LISTED)
    # The index alone is read only where Postgres knows that a page is visible to all: new pages are vacuumed soon.
    op.execute(
        "ALTER TABLE rollouts SET (autovacuum_vacuum_insert_threshold = 5000, autovacuum_vacuum_insert_scale_factor = 0,"
        " autovacuum_analyze_scale_factor = 0.02)"
    )
    op.drop_index("ix_judgements_run_id_judge_id", table_name="judgements")
    op.create_index(
        "ix_judgements_run_id_judge_id",
        "judgements",
        ["run_id", "judge_id"],
        unique=False,
        postgresql_include=["rollout_id", "score"],
    )
    op.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm")
    op.create_table(
        "rollout_texts",
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_rollout_texts_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "seq", name=op.f("pk_rollout_texts")),
    )
    op.create_index(
        "ix_rollout_texts_body",
        "rollout_texts",
        ["body"],
        unique=False,
        postgresql_using="gin",
        postgresql_ops={"body": "gin_trgm_ops"},
    )


def downgrade() -> None:
    op.drop_table("rollout_texts")
    op.drop_index("ix_judgements_run_id_judge_id", table_name="judgements")
    op.create_index("ix_judgements_run_id_judge_id", "judgements", ["run_id", "judge_id"], unique=False)
    op.execute(
        "ALTER TABLE rollouts RESET (autovacuum_vacuum_insert_threshold, autovacuum_vacuum_insert_scale_factor,"
        " autovacuum_analyze_scale_factor)"
    )
    op.drop_index("ix_rollouts_run_id_seq", table_name="rollouts")
    op.create_index("ix_rollouts_run_id_seq", "rollouts", ["run_id", "seq"], unique=True)
    op.create_index("ix_rollouts_run_id_reward", "rollouts", ["run_id", "reward", "id"], unique=False)
    op.create_index(
        "ix_rollouts_run_id_phase_training_step", "rollouts", ["run_id", "phase", "training_step"], unique=False
    )
