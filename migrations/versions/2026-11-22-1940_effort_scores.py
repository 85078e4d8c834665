"""Effort scores: sides that were played, and replies whose reasoning was cut."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "c3a8e51f7d20"
down_revision = "91c4e7d0ab36"
branch_labels = None
depends_on = None


def _words(name: str, *values: str) -> sa.Enum:
    return sa.Enum(*values, name=name, native_enum=False, create_constraint=True, length=32)


def _created_at() -> sa.Column[sa.DateTime]:
    return sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False)


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    op.create_table(
        "effort_scores",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("version_id", sa.UUID(), nullable=False),
        sa.Column(
            "status",
            _words("runstatus", "queued", "running", "paused", "stopped", "completed", "failed"),
            nullable=False,
        ),
        sa.Column("plan", postgresql.JSONB(), nullable=False),
        sa.Column("cuts", sa.Integer(), nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("replies", sa.Integer(), nullable=False),
        sa.Column("measure", _words("effortmeasure", "success", "reward"), nullable=False),
        sa.Column("outcome", _words("effortoutcome", "suspicious", "unremarkable", "unknown"), nullable=True),
        sa.Column("sentence", sa.Text(), nullable=False),
        sa.Column("difference", sa.Double(), nullable=True),
        sa.Column("low", sa.Double(), nullable=True),
        sa.Column("high", sa.Double(), nullable=True),
        sa.Column("tasks", sa.Integer(), nullable=True),
        sa.Column("base_limit", sa.Double(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("asked_by", sa.UUID(), nullable=True),
        _created_at(),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["asked_by"], ["people.id"], name=op.f("fk_effort_scores_asked_by"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_effort_scores_run_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["version_id"],
            ["environment_versions.id"],
            name=op.f("fk_effort_scores_version_id"),
            ondelete="RESTRICT",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_effort_scores")),
    )
    op.create_index("ix_effort_scores_run_id_id", "effort_scores", ["run_id", "id"], unique=False)
    op.create_table(
        "effort_sides",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("score_id", sa.UUID(), nullable=False),
        sa.Column("checkpoint_id", sa.UUID(), nullable=True),
        sa.Column("run_id", sa.UUID(), nullable=True),
        sa.Column("is_base", sa.Boolean(), nullable=False),
        sa.Column("stage", sa.String(length=16), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("played", sa.Integer(), nullable=True),
        sa.Column("succeeded", sa.Integer(), nullable=True),
        sa.Column("reasoned", sa.Integer(), nullable=True),
        sa.Column("chosen", sa.Integer(), nullable=True),
        sa.Column("is_done", sa.Boolean(), nullable=False),
        _created_at(),
        sa.ForeignKeyConstraint(
            ["checkpoint_id"], ["checkpoints.id"], name=op.f("fk_effort_sides_checkpoint_id"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_effort_sides_run_id"), ondelete="SET NULL"),
        sa.ForeignKeyConstraint(
            ["score_id"], ["effort_scores.id"], name=op.f("fk_effort_sides_score_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_effort_sides")),
        sa.UniqueConstraint("score_id", "is_base", name=op.f("uq_effort_sides_score_id_is_base")),
    )
    op.create_index(op.f("ix_effort_sides_run_id"), "effort_sides", ["run_id"], unique=False)
    op.create_table(
        "effort_replies",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("side_id", sa.UUID(), nullable=False),
        sa.Column("rollout_id", sa.UUID(), nullable=False),
        sa.Column("task", sa.String(length=80), nullable=False),
        sa.Column("characters", sa.Integer(), nullable=False),
        sa.Column("values", postgresql.ARRAY(sa.Double()), nullable=False),
        sa.Column("score", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["side_id"], ["effort_sides.id"], name=op.f("fk_effort_replies_side_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_effort_replies")),
        sa.UniqueConstraint("side_id", "rollout_id", name=op.f("uq_effort_replies_side_id_rollout_id")),
    )


def downgrade() -> None:
    op.drop_table("effort_replies")
    op.drop_index(op.f("ix_effort_sides_run_id"), table_name="effort_sides")
    op.drop_table("effort_sides")
    op.drop_index("ix_effort_scores_run_id_id", table_name="effort_scores")
    op.drop_table("effort_scores")
