"""Alarms, changed settings, pre-flights, uploaded lessons, branches, adapters; queues of further engines.

Rollouts lose their foreign key to the group, which took a sixth of the write path.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "a9023ce8fca3"
down_revision = "5c1d7c0be2a4"
branch_labels = None
depends_on = None


def _allow_queues(*queues: str) -> None:
    listed = ", ".join(f"'{queue}'" for queue in queues)
    op.drop_constraint(op.f("ck_jobs_queue"), "jobs", type_="check")
    op.create_check_constraint(op.f("ck_jobs_queue"), "jobs", f"queue IN ({listed})")


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    op.create_table(
        "lesson_files",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("artifact", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("conversations", sa.Integer(), nullable=False),
        sa.Column("statistics", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_by", sa.UUID(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["created_by"], ["people.id"], name=op.f("fk_lesson_files_created_by"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_lesson_files")),
    )
    op.create_table(
        "preflights",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("version_id", sa.UUID(), nullable=False),
        sa.Column("configuration", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column(
            "status",
            sa.Enum(
                "queued",
                "running",
                "completed",
                "failed",
                name="preflightstatus",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("findings", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("progress", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("created_by", sa.UUID(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["created_by"], ["people.id"], name=op.f("fk_preflights_created_by"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["version_id"], ["environment_versions.id"], name=op.f("fk_preflights_version_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_preflights")),
    )
    op.create_index(op.f("ix_preflights_version_id"), "preflights", ["version_id"], unique=False)
    op.create_table(
        "alarms",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("name", sa.String(length=60), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("sentence", sa.Text(), nullable=False),
        sa.Column("evidence", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column(
            "action",
            sa.Enum(
                "note",
                "lower_rate",
                "pause",
                "stop",
                "roll_back",
                name="alarmaction",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column(
            "answer",
            sa.Enum(
                "lower_rate",
                "pause",
                "stop",
                "roll_back",
                "dismiss",
                name="alarmanswer",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=True,
        ),
        sa.Column("answered_by", sa.UUID(), nullable=True),
        sa.Column("answered_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["answered_by"], ["people.id"], name=op.f("fk_alarms_answered_by"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_alarms_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alarms")),
    )
    op.create_index("ix_alarms_run_id_id", "alarms", ["run_id", "id"], unique=False)
    op.create_table(
        "setting_changes",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("name", sa.String(length=80), nullable=False),
        sa.Column("before", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("after", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("alarm_id", sa.UUID(), nullable=True),
        sa.Column("asked_by", sa.UUID(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["alarm_id"], ["alarms.id"], name=op.f("fk_setting_changes_alarm_id"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["asked_by"], ["people.id"], name=op.f("fk_setting_changes_asked_by"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_setting_changes_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_setting_changes")),
    )
    op.create_index("ix_setting_changes_run_id_id", "setting_changes", ["run_id", "id"], unique=False)
    op.add_column("checkpoints", sa.Column("adapter", postgresql.JSONB(astext_type=sa.Text()), nullable=True))
    op.add_column("checkpoints", sa.Column("is_kept", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.add_column("checkpoints", sa.Column("pruned_at", sa.DateTime(timezone=True), nullable=True))
    op.alter_column("checkpoints", "size_bytes", type_=sa.BigInteger(), existing_nullable=False)
    op.add_column(
        "exports",
        sa.Column(
            "form",
            sa.Enum(
                "full",
                "adapter",
                "merged",
                "merged_dequantised",
                "gguf",
                name="exportform",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            server_default="full",
            nullable=False,
        ),
    )
    op.add_column(
        "exports",
        sa.Column("options", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'"), nullable=False),
    )
    op.drop_constraint(op.f("fk_rollouts_group_id"), "rollouts", type_="foreignkey")
    op.add_column("runs", sa.Column("branch_step", sa.Integer(), nullable=True))
    _allow_queues("cpu", "gpu", "gpu-vllm", "gpu-unsloth")


def downgrade() -> None:
    _allow_queues("cpu", "gpu")
    op.drop_column("runs", "branch_step")
    op.create_foreign_key(op.f("fk_rollouts_group_id"), "rollouts", "groups", ["group_id"], ["id"], ondelete="CASCADE")
    op.drop_column("exports", "options")
    op.drop_column("exports", "form")
    op.alter_column("checkpoints", "size_bytes", type_=sa.Integer(), existing_nullable=False)
    op.drop_column("checkpoints", "pruned_at")
    op.drop_column("checkpoints", "is_kept")
    op.drop_column("checkpoints", "adapter")
    op.drop_index("ix_setting_changes_run_id_id", table_name="setting_changes")
    op.drop_table("setting_changes")
    op.drop_index("ix_alarms_run_id_id", table_name="alarms")
    op.drop_table("alarms")
    op.drop_index(op.f("ix_preflights_version_id"), table_name="preflights")
    op.drop_table("preflights")
    op.drop_table("lesson_files")
