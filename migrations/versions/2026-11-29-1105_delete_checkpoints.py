"""Checkpoints, studies and graders can be deleted and restored."""

import sqlalchemy as sa
from alembic import op

revision = "d92f5b6e0c17"
down_revision = "c41d7e90b2a6"
branch_labels = None
depends_on = None

KINDS = ("run", "environment", "policy", "checkpoint", "study", "grader")


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    _allow(KINDS)
    for table in ("checkpoints", "studies"):
        op.add_column(table, sa.Column("deletion_id", sa.UUID(), nullable=True))
        op.create_foreign_key(None, table, "deletions", ["deletion_id"], ["id"], ondelete="RESTRICT")
    is_deleted = sa.text("deletion_id IS NOT NULL")
    op.create_index("ix_checkpoints_deletion_id", "checkpoints", ["deletion_id"], postgresql_where=is_deleted)


def downgrade() -> None:
    op.drop_index("ix_checkpoints_deletion_id", table_name="checkpoints")
    for table in ("checkpoints", "studies"):
        op.drop_column(table, "deletion_id")
    op.execute("DELETE FROM deletions WHERE kind NOT IN ('run', 'environment', 'policy')")
    _allow(KINDS[:3])


def _allow(kinds: tuple[str, ...]) -> None:
    op.drop_constraint(op.f("ck_deletions_deletedkind"), "deletions", type_="check")
    op.create_check_constraint(op.f("ck_deletions_deletedkind"), "deletions", sa.column("kind").in_(kinds))
