"""Known chances and daily limits of the audit sample."""

import sqlalchemy as sa
from alembic import op

revision = "b1f0a6c4d2e7"
down_revision = "968229152124"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    op.add_column("audit_draws", sa.Column("day", sa.Date(), nullable=True))
    op.add_column(
        "audit_draws", sa.Column("threshold", sa.DOUBLE_PRECISION(), server_default=sa.text("1"), nullable=False)
    )
    op.add_column(
        "audit_samples", sa.Column("chance", sa.DOUBLE_PRECISION(), server_default=sa.text("0.02"), nullable=False)
    )
    op.add_column(
        "audit_samples", sa.Column("priority", sa.DOUBLE_PRECISION(), server_default=sa.text("0.5"), nullable=False)
    )
    op.add_column("audit_samples", sa.Column("is_flagged", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.execute("UPDATE audit_samples SET chance = d.share FROM audit_draws d WHERE d.run_id = audit_samples.run_id")


def downgrade() -> None:
    for name in ("is_flagged", "priority", "chance"):
        op.drop_column("audit_samples", name)
    for name in ("threshold", "day"):
        op.drop_column("audit_draws", name)
