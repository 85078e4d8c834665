"""Transfer reports of exports."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "e5c81d07a3b9"
down_revision = "b1f0a6c4d2e7"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")

    op.add_column("exports", sa.Column("transfer", postgresql.JSONB(astext_type=sa.Text()), nullable=True))
    op.create_table(
        "transfer_evaluations",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("export_id", sa.UUID(), nullable=False),
        sa.Column("version_id", sa.UUID(), nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=True),
        sa.Column("is_reference", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["export_id"], ["exports.id"], name=op.f("fk_transfer_evaluations_export_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["version_id"],
            ["environment_versions.id"],
            name=op.f("fk_transfer_evaluations_version_id"),
            ondelete="RESTRICT",
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_transfer_evaluations_run_id"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_transfer_evaluations")),
    )
    op.create_index(op.f("ix_transfer_evaluations_export_id"), "transfer_evaluations", ["export_id"], unique=False)
    op.create_index(op.f("ix_transfer_evaluations_run_id"), "transfer_evaluations", ["run_id"], unique=False)


def downgrade() -> None:
    op.drop_table("transfer_evaluations")
    op.drop_column("exports", "transfer")
