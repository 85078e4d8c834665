"""Keys that sign certificates, and stored benchmarks of detectors."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "968229152124"
down_revision = "initial_0_2"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")

    op.create_table(
        "signing_keys",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("public_key", sa.Text(), nullable=False),
        sa.Column("private_key", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_signing_keys")),
    )
    op.create_table(
        "detector_benchmarks",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("source", sa.String(length=60), nullable=False),
        sa.Column("result", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_by", sa.UUID(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["created_by"], ["people.id"], name=op.f("fk_detector_benchmarks_created_by"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_detector_benchmarks")),
    )
    op.create_index(
        "ix_detector_benchmarks_source_created_at", "detector_benchmarks", ["source", "created_at"], unique=False
    )
