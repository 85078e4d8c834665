"""How detectors are set for an environment or a run."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "8236ba50bb68"
down_revision = "a9023ce8fca3"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    op.create_table(
        "detector_settings",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("environment_id", sa.UUID(), nullable=True),
        sa.Column("run_id", sa.UUID(), nullable=True),
        sa.Column("detector", sa.String(length=60), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=True),
        sa.Column("thresholds", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column(
            "action",
            sa.Enum(
                "note",
                "pause",
                "screen",
                "stop_and_roll_back",
                name="action",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=True,
        ),
        sa.Column("changed_by", sa.UUID(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("(environment_id IS NULL) <> (run_id IS NULL)", name=op.f("ck_detector_settings_owner")),
        sa.ForeignKeyConstraint(
            ["changed_by"], ["people.id"], name=op.f("fk_detector_settings_changed_by"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["environment_id"],
            ["environments.id"],
            name=op.f("fk_detector_settings_environment_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_detector_settings_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_detector_settings")),
        sa.UniqueConstraint(
            "environment_id",
            "run_id",
            "detector",
            name=op.f("uq_detector_settings_environment_id_run_id_detector"),
            postgresql_nulls_not_distinct=True,
        ),
    )
    op.create_index(op.f("ix_detector_settings_run_id"), "detector_settings", ["run_id"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_detector_settings_run_id"), table_name="detector_settings")
    op.drop_table("detector_settings")
