"""Fixtures out of verdicts can be taken back, and say by whom and why."""

import sqlalchemy as sa
from alembic import op

revision = "c3f5a1d27b90"
down_revision = "64584920b9d4"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    op.add_column("fixtures", sa.Column("withdrawn_by", sa.UUID(), nullable=True))
    op.add_column("fixtures", sa.Column("withdrawn_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("fixtures", sa.Column("withdrawn_because", sa.Text(), server_default="", nullable=False))
    op.create_foreign_key(
        op.f("fk_fixtures_withdrawn_by"), "fixtures", "people", ["withdrawn_by"], ["id"], ondelete="SET NULL"
    )
    op.create_index(op.f("ix_fixtures_rollout_id"), "fixtures", ["rollout_id"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_fixtures_rollout_id"), table_name="fixtures")
    op.drop_constraint(op.f("fk_fixtures_withdrawn_by"), "fixtures", type_="foreignkey")
    op.drop_column("fixtures", "withdrawn_because")
    op.drop_column("fixtures", "withdrawn_at")
    op.drop_column("fixtures", "withdrawn_by")
