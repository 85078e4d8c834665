"""Runs and environments can be deleted and restored; runs and policies can be archived."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "a7d05e3bc914"
down_revision = "b7d40c95e21a"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    op.create_table(
        "deletions",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("request_id", sa.UUID(), nullable=False),
        sa.Column(
            "kind",
            sa.Enum(
                *("run", "environment", "policy"),
                name="deletedkind",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("item_id", sa.UUID(), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("project_id", sa.UUID(), nullable=False),
        sa.Column("contents", postgresql.JSONB(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("names", postgresql.JSONB(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("deleted_by", sa.UUID(), nullable=True),
        sa.Column("deleted_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("purge_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("purge_started_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], ondelete="RESTRICT"),
        sa.ForeignKeyConstraint(["deleted_by"], ["people.id"], ondelete="SET NULL"),
        sa.PrimaryKeyConstraint("id"),
    )
    for column in ("request_id", "project_id", "purge_at"):
        op.create_index(f"ix_deletions_{column}", "deletions", [column])
    for table in ("runs", "policies"):
        op.add_column(table, sa.Column("archived_at", sa.DateTime(timezone=True), nullable=True))
    for table in ("runs", "environments"):
        op.add_column(table, sa.Column("deletion_id", sa.UUID(), nullable=True))
        op.create_foreign_key(None, table, "deletions", ["deletion_id"], ["id"], ondelete="RESTRICT")
    is_deleted = sa.text("deletion_id IS NOT NULL")
    op.create_index("ix_runs_deletion_id", "runs", ["deletion_id"], postgresql_where=is_deleted)


def downgrade() -> None:
    op.drop_index("ix_runs_deletion_id", table_name="runs")
    for table in ("runs", "environments"):
        op.drop_column(table, "deletion_id")
    for table in ("runs", "policies"):
        op.drop_column(table, "archived_at")
    op.drop_table("deletions")
