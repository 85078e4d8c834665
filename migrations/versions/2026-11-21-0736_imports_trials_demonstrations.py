"""Imports of foreign packages, trials of drafts, rollouts marked as worth imitating."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "48e1766ab60f"
down_revision = "38e3d2bf51d4"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    op.create_table(
        "draft_trials",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("environment_id", sa.UUID(), nullable=False),
        sa.Column("person_id", sa.UUID(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("is_waiting", sa.Boolean(), nullable=False),
        sa.Column("task", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("replies", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("draft_revision", sa.Integer(), nullable=False),
        sa.Column("answer", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["environments.id"], name=op.f("fk_draft_trials_environment_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["person_id"], ["people.id"], name=op.f("fk_draft_trials_person_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_draft_trials")),
        sa.UniqueConstraint("environment_id", "person_id", name=op.f("uq_draft_trials_environment_id_person_id")),
    )
    op.create_table(
        "environment_imports",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("files", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("manifest", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("block", sa.Text(), nullable=False),
        sa.Column("columns_from", sa.Text(), nullable=True),
        sa.Column(
            "status",
            sa.Enum(
                "queued",
                "running",
                "paused",
                "stopped",
                "completed",
                "failed",
                name="runstatus",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("report", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("build_log", sa.Text(), nullable=False),
        sa.Column("environment_id", sa.UUID(), nullable=True),
        sa.Column("created_by", sa.UUID(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["created_by"], ["people.id"], name=op.f("fk_environment_imports_created_by"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["environment_id"],
            ["environments.id"],
            name=op.f("fk_environment_imports_environment_id"),
            ondelete="SET NULL",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_environment_imports")),
    )
    op.create_index("ix_environment_imports_created_at_id", "environment_imports", ["created_at", "id"], unique=False)
    op.create_index(
        op.f("ix_environment_imports_environment_id"), "environment_imports", ["environment_id"], unique=False
    )
    op.add_column(
        "rollouts", sa.Column("is_demonstration", sa.Boolean(), server_default=sa.text("false"), nullable=False)
    )


def downgrade() -> None:
    op.drop_column("rollouts", "is_demonstration")
    op.drop_index(op.f("ix_environment_imports_environment_id"), table_name="environment_imports")
    op.drop_index("ix_environment_imports_created_at_id", table_name="environment_imports")
    op.drop_table("environment_imports")
    op.drop_table("draft_trials")
