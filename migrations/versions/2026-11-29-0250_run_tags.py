"""Runs have tags and a note."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision = "e2b74c81d9f0"
down_revision = "c1e6a20d5b84"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    op.add_column("runs", sa.Column("tags", ARRAY(sa.Text()), server_default="{}", nullable=False))
    op.add_column("runs", sa.Column("note", sa.Text(), server_default="", nullable=False))
    op.create_index("ix_runs_tags", "runs", ["tags"], postgresql_using="gin")


def downgrade() -> None:
    op.drop_column("runs", "note")
    op.drop_column("runs", "tags")
