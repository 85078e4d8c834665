"""Detectors are set for environments; a run's own thresholds are in its configuration."""

import sqlalchemy as sa
from alembic import op

revision = "5b1f0c7e92d4"
down_revision = "5b7d20c94e1f"
branch_labels = None
depends_on = None

TABLE = "detector_settings"


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    op.execute("DELETE FROM detector_settings WHERE run_id IS NOT NULL")
    op.drop_constraint(op.f("ck_detector_settings_owner"), TABLE, type_="check")
    op.drop_constraint(op.f("uq_detector_settings_environment_id_run_id_detector"), TABLE, type_="unique")
    op.drop_column(TABLE, "run_id")  # and its index
    op.alter_column(TABLE, "environment_id", nullable=False)
    op.create_unique_constraint(
        op.f("uq_detector_settings_environment_id_detector"), TABLE, ["environment_id", "detector"]
    )


def downgrade() -> None:
    op.drop_constraint(op.f("uq_detector_settings_environment_id_detector"), TABLE, type_="unique")
    op.alter_column(TABLE, "environment_id", nullable=True)
    op.add_column(TABLE, sa.Column("run_id", sa.UUID(), nullable=True))
    op.create_foreign_key(op.f("fk_detector_settings_run_id"), TABLE, "runs", ["run_id"], ["id"], ondelete="CASCADE")
    op.create_index(op.f("ix_detector_settings_run_id"), TABLE, ["run_id"], unique=False)
    op.create_unique_constraint(
        op.f("uq_detector_settings_environment_id_run_id_detector"),
        TABLE,
        ["environment_id", "run_id", "detector"],
        postgresql_nulls_not_distinct=True,
    )
    op.create_check_constraint(
        op.f("ck_detector_settings_owner"), TABLE, "(environment_id IS NULL) <> (run_id IS NULL)"
    )
