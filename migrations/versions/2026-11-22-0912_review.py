"""The review: its list, assignments, daily targets and the blind sample."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "64584920b9d4"
down_revision = "8236ba50bb68"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    op.create_table(
        "review_targets",
        sa.Column("person_id", sa.UUID(), nullable=False),
        sa.Column("per_day", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["person_id"], ["people.id"], name=op.f("fk_review_targets_person_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("person_id", name=op.f("pk_review_targets")),
    )
    op.create_table(
        "audit_draws",
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("share", sa.DOUBLE_PRECISION(), nullable=False),
        sa.Column("drawn_seq", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_audit_draws_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_audit_draws")),
    )
    op.create_table(
        "audit_samples",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("rollout_id", sa.UUID(), nullable=False),
        sa.Column("lot", sa.DOUBLE_PRECISION(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["rollout_id"], ["rollouts.id"], name=op.f("fk_audit_samples_rollout_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_audit_samples_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_samples")),
        sa.UniqueConstraint("rollout_id", name=op.f("uq_audit_samples_rollout_id")),
    )
    op.create_index(op.f("ix_audit_samples_run_id"), "audit_samples", ["run_id"], unique=False)
    op.create_table(
        "review_items",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("environment_id", sa.UUID(), nullable=False),
        sa.Column("rollout_id", sa.UUID(), nullable=True),
        sa.Column("detectors", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("cluster", sa.String(length=300), nullable=True),
        sa.Column("suspicion", sa.DOUBLE_PRECISION(), nullable=False),
        sa.Column("reward_share", sa.DOUBLE_PRECISION(), nullable=False),
        sa.Column("rank", sa.DOUBLE_PRECISION(), nullable=False),
        sa.Column(
            "verdict",
            sa.Enum(
                "honest",
                "hack",
                "broken_reward",
                "unsure",
                name="verdict",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=True,
        ),
        sa.Column("reviewers", postgresql.ARRAY(sa.Uuid()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["environments.id"], name=op.f("fk_review_items_environment_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["rollout_id"], ["rollouts.id"], name=op.f("fk_review_items_rollout_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_review_items_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_review_items")),
        sa.UniqueConstraint("rollout_id", name=op.f("uq_review_items_rollout_id")),
    )
    op.create_index("ix_review_items_cluster", "review_items", ["environment_id", "cluster"], unique=False)
    op.create_index("ix_review_items_created_at_id", "review_items", ["created_at", "id"], unique=False)
    op.create_index(op.f("ix_review_items_run_id"), "review_items", ["run_id"], unique=False)
    op.create_index(
        "ix_review_items_waiting",
        "review_items",
        ["rank", "id"],
        unique=False,
        postgresql_where=sa.text("verdict IS NULL"),
    )
    op.create_index(
        "ix_review_items_waiting_environment",
        "review_items",
        ["environment_id", "rank", "id"],
        unique=False,
        postgresql_where=sa.text("verdict IS NULL"),
    )
    op.create_index(
        "ix_review_items_waiting_run",
        "review_items",
        ["run_id", "rank", "id"],
        unique=False,
        postgresql_where=sa.text("verdict IS NULL"),
    )
    op.create_table(
        "review_assignments",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("item_id", sa.UUID(), nullable=False),
        sa.Column("person_id", sa.UUID(), nullable=False),
        sa.Column("assigned_by", sa.UUID(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["assigned_by"], ["people.id"], name=op.f("fk_review_assignments_assigned_by"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["item_id"], ["review_items.id"], name=op.f("fk_review_assignments_item_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["person_id"], ["people.id"], name=op.f("fk_review_assignments_person_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_review_assignments")),
        sa.UniqueConstraint("item_id", "person_id", name=op.f("uq_review_assignments_item_id_person_id")),
    )
    op.create_index(op.f("ix_review_assignments_person_id"), "review_assignments", ["person_id"], unique=False)
    op.add_column("flags", sa.Column("cluster", sa.String(length=200), nullable=True))
    op.add_column("verdicts", sa.Column("is_blind", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.add_column("verdicts", sa.Column("is_bulk", sa.Boolean(), server_default=sa.text("false"), nullable=False))


def downgrade() -> None:
    op.drop_column("verdicts", "is_bulk")
    op.drop_column("verdicts", "is_blind")
    op.drop_column("flags", "cluster")
    op.drop_index(op.f("ix_review_assignments_person_id"), table_name="review_assignments")
    op.drop_table("review_assignments")
    op.drop_index("ix_review_items_waiting_run", table_name="review_items", postgresql_where=sa.text("verdict IS NULL"))
    op.drop_index(
        "ix_review_items_waiting_environment", table_name="review_items", postgresql_where=sa.text("verdict IS NULL")
    )
    op.drop_index("ix_review_items_waiting", table_name="review_items", postgresql_where=sa.text("verdict IS NULL"))
    op.drop_index(op.f("ix_review_items_run_id"), table_name="review_items")
    op.drop_index("ix_review_items_created_at_id", table_name="review_items")
    op.drop_index("ix_review_items_cluster", table_name="review_items")
    op.drop_table("review_items")
    op.drop_index(op.f("ix_audit_samples_run_id"), table_name="audit_samples")
    op.drop_table("audit_samples")
    op.drop_table("audit_draws")
    op.drop_table("review_targets")
