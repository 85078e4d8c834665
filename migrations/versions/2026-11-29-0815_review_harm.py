"""Expected harm of review items, the limit of the audit sample, and what each member is notified of."""

import sqlalchemy as sa
from alembic import op

revision = "b7d40c95e21a"
down_revision = "e2b74c81d9f0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    op.add_column("review_items", sa.Column("harm", sa.DOUBLE_PRECISION(), nullable=True))
    op.create_index(
        "ix_review_items_harm",
        "review_items",
        ["harm", "id"],
        postgresql_where=sa.text("verdict IS NULL AND harm IS NOT NULL"),
    )
    op.create_table(
        "audit_limits",
        sa.Column("id", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("per_day", sa.Integer(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_audit_limits_single")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_limits")),
    )


def downgrade() -> None:
    op.drop_table("audit_limits")
    op.drop_index("ix_review_items_harm", table_name="review_items")
    op.drop_column("review_items", "harm")
