"""Questions in plain words, where they were asked, and what was answered about each rollout."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "91c4e7d0ab36"
down_revision = "5b2f7a90e1c4"
branch_labels = None
depends_on = None

STATUSES = ("queued", "running", "paused", "stopped", "completed", "failed")


def _enum(*values: str, name: str) -> sa.Enum:
    return sa.Enum(*values, name=name, native_enum=False, create_constraint=True, length=32)


def _created_at() -> sa.Column[sa.DateTime]:
    return sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False)


def _belongs(table: str, column: str, to: str, ondelete: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [f"{to}.id"], name=op.f(f"fk_{table}_{column}"), ondelete=ondelete)


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    op.create_table(
        "questions",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column(
            "kind", _enum("question", "reasoning_monitor", "contrastive_judge", name="questionkind"), nullable=False
        ),
        sa.Column("policy_id", sa.UUID(), nullable=False),
        sa.Column("configuration", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_by", sa.UUID(), nullable=True),
        _created_at(),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        _belongs("questions", "policy_id", "policies", "RESTRICT"),
        _belongs("questions", "created_by", "people", "SET NULL"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_questions")),
        sa.UniqueConstraint("name", name=op.f("uq_questions_name")),
    )
    op.create_index(op.f("ix_questions_policy_id"), "questions", ["policy_id"], unique=False)
    op.create_table(
        "askings",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("question_id", sa.UUID(), nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=True),
        sa.Column("where", sa.Text(), nullable=False),
        sa.Column("cluster", sa.String(length=300), nullable=True),
        sa.Column("status", _enum(*STATUSES, name="runstatus"), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("total", sa.Integer(), nullable=True),
        sa.Column("stop_requested", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("canaries", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("findings", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("tokens_in", sa.Integer(), nullable=False),
        sa.Column("tokens_out", sa.Integer(), nullable=False),
        sa.Column("cost", sa.DOUBLE_PRECISION(), nullable=True),
        sa.Column("created_by", sa.UUID(), nullable=True),
        _created_at(),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        _belongs("askings", "question_id", "questions", "CASCADE"),
        _belongs("askings", "run_id", "runs", "CASCADE"),
        _belongs("askings", "created_by", "people", "SET NULL"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_askings")),
        sa.UniqueConstraint("question_id", "run_id", name=op.f("uq_askings_question_id_run_id")),
    )
    op.create_index(op.f("ix_askings_run_id"), "askings", ["run_id"], unique=False)
    op.create_table(
        "question_answers",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("question_id", sa.UUID(), nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("rollout_id", sa.UUID(), nullable=False),
        sa.Column("status", _enum("completed", "failed", name="judgementstatus"), nullable=False),
        sa.Column("answer", sa.String(length=60), nullable=True),
        sa.Column("value", sa.REAL(), nullable=True),
        sa.Column("confidence", sa.REAL(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("citations", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("dropped", sa.Integer(), nullable=False),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("raw", sa.Text(), nullable=True),
        sa.Column("tokens_in", sa.Integer(), nullable=False),
        sa.Column("tokens_out", sa.Integer(), nullable=False),
        sa.Column("cost", sa.DOUBLE_PRECISION(), nullable=True),
        _created_at(),
        _belongs("question_answers", "question_id", "questions", "CASCADE"),
        _belongs("question_answers", "run_id", "runs", "CASCADE"),
        _belongs("question_answers", "rollout_id", "rollouts", "CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_question_answers")),
        sa.UniqueConstraint("question_id", "rollout_id", name=op.f("uq_question_answers_question_id_rollout_id")),
    )
    op.create_index(op.f("ix_question_answers_rollout_id"), "question_answers", ["rollout_id"], unique=False)
    op.create_index(
        "ix_question_answers_run_id_question_id",
        "question_answers",
        ["run_id", "question_id"],
        unique=False,
        postgresql_include=["rollout_id", "answer", "value"],
    )


def downgrade() -> None:
    op.drop_table("question_answers")
    op.drop_table("askings")
    op.drop_table("questions")
