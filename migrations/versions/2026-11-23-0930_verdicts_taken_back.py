"""Verdicts that whoever gave them took back: those of clusters were taken back by a verdict of unsure on each."""

import sqlalchemy as sa
from alembic import op

revision = "e40b7d92a6c8"
down_revision = "c3a8e51f7d20"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    op.add_column("verdicts", sa.Column("taken_back_at", sa.DateTime(timezone=True), nullable=True))
    op.execute(
        """
        UPDATE verdicts given SET taken_back_at = undone.created_at
        FROM verdicts undone
        WHERE undone.is_bulk AND undone.verdict = 'unsure'
          AND given.is_bulk AND given.rollout_id = undone.rollout_id
          AND (given.created_at, given.id) <= (undone.created_at, undone.id)
        """
    )


def downgrade() -> None:
    op.drop_column("verdicts", "taken_back_at")
