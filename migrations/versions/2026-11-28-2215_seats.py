"""Episodes that several policies play: rollouts have seats."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "a4d07f6b92e1"
down_revision = "e81b5d3a9c47"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    op.add_column("rollouts", sa.Column("seat", sa.String(40), nullable=True))
    op.add_column("rollouts", sa.Column("seats", JSONB(), nullable=True))


def downgrade() -> None:
    op.drop_column("rollouts", "seats")
    op.drop_column("rollouts", "seat")
