"""Detectors that are trained on the verdicts of an environment."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "5b7e0c94d1a3"
down_revision = "e5c81d07a3b9"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    op.create_table(
        "learned_detectors",
        sa.Column("environment_id", sa.UUID(), nullable=False),
        sa.Column("verdicts", sa.Integer(), nullable=False),
        sa.Column("features", sa.Integer(), nullable=False),
        sa.Column("problem", sa.Text(), server_default="", nullable=False),
        sa.Column("report", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("model", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("trained_by", sa.UUID(), nullable=True),
        sa.Column("trained_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["environment_id"],
            ["environments.id"],
            name=op.f("fk_learned_detectors_environment_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["trained_by"], ["people.id"], name=op.f("fk_learned_detectors_trained_by"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("environment_id", name=op.f("pk_learned_detectors")),
    )


def downgrade() -> None:
    op.drop_table("learned_detectors")
