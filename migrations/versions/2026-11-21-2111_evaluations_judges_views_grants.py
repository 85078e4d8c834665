"""Judges and their judgements, saved views, network grants; waiting time, cost and origin of rollouts and runs."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "9da77917eb25"
down_revision = "48e1766ab60f"
branch_labels = None
depends_on = None

RUN_KINDS = ("evaluation", "training", "check", "play")
POLICY_KINDS = ("local", "openai_api", "scripted", "human")


def _allow(table: str, name: str, kinds: tuple[str, ...]) -> None:
    """What the column `kind` may hold from now on."""
    listed = ", ".join(f"'{kind}'" for kind in kinds)
    op.drop_constraint(op.f(f"ck_{table}_{name}"), table, type_="check")
    op.create_check_constraint(op.f(f"ck_{table}_{name}"), table, f"kind IN ({listed})")


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    _allow("runs", "runkind", (*RUN_KINDS, "rescore", "replay"))
    _allow("policies", "policykind", (*POLICY_KINDS, "external"))
    op.create_table(
        "network_grants",
        sa.Column("content_hash", sa.String(length=64), nullable=False),
        sa.Column("granted_by", sa.UUID(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["granted_by"], ["people.id"], name=op.f("fk_network_grants_granted_by"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("content_hash", name=op.f("pk_network_grants")),
    )
    op.create_table(
        "saved_views",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("person_id", sa.UUID(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("filter", sa.Text(), nullable=False),
        sa.Column("sort", sa.String(length=100), nullable=False),
        sa.Column("is_shared", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["person_id"], ["people.id"], name=op.f("fk_saved_views_person_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_saved_views")),
        sa.UniqueConstraint("person_id", "name", name=op.f("uq_saved_views_person_id_name")),
    )
    op.create_table(
        "judges",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("policy_id", sa.UUID(), nullable=False),
        sa.Column("configuration", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_by", sa.UUID(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["created_by"], ["people.id"], name=op.f("fk_judges_created_by"), ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["policy_id"], ["policies.id"], name=op.f("fk_judges_policy_id"), ondelete="RESTRICT"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_judges")),
        sa.UniqueConstraint("name", name=op.f("uq_judges_name")),
    )
    op.create_index(op.f("ix_judges_policy_id"), "judges", ["policy_id"], unique=False)
    op.create_table(
        "judgements",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("judge_id", sa.UUID(), nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("rollout_id", sa.UUID(), nullable=False),
        sa.Column(
            "status",
            sa.Enum(
                "completed", "failed", name="judgementstatus", native_enum=False, create_constraint=True, length=32
            ),
            nullable=False,
        ),
        sa.Column("score", sa.REAL(), nullable=True),
        sa.Column("spread", sa.REAL(), nullable=True),
        sa.Column("verdicts", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("tokens_in", sa.Integer(), nullable=False),
        sa.Column("tokens_out", sa.Integer(), nullable=False),
        sa.Column("cost", sa.DOUBLE_PRECISION(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["judge_id"], ["judges.id"], name=op.f("fk_judgements_judge_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["rollout_id"], ["rollouts.id"], name=op.f("fk_judgements_rollout_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_judgements_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_judgements")),
        sa.UniqueConstraint("judge_id", "rollout_id", name=op.f("uq_judgements_judge_id_rollout_id")),
    )
    op.create_index(op.f("ix_judgements_rollout_id"), "judgements", ["rollout_id"], unique=False)
    op.create_index("ix_judgements_run_id_judge_id", "judgements", ["run_id", "judge_id"], unique=False)
    op.add_column("rollouts", sa.Column("queue_seconds", sa.REAL(), server_default=sa.text("0"), nullable=False))
    op.add_column("rollouts", sa.Column("cost", sa.DOUBLE_PRECISION(), nullable=True))
    op.add_column("rollouts", sa.Column("source_id", sa.Uuid(), nullable=True))
    op.add_column("runs", sa.Column("source_run_id", sa.UUID(), nullable=True))
    op.create_index(op.f("ix_runs_source_run_id"), "runs", ["source_run_id"], unique=False)
    op.create_foreign_key(op.f("fk_runs_source_run_id"), "runs", "runs", ["source_run_id"], ["id"], ondelete="SET NULL")


def downgrade() -> None:
    op.execute("DELETE FROM runs WHERE kind IN ('rescore', 'replay')")
    op.execute("DELETE FROM runs USING policies WHERE policies.id = runs.policy_id AND policies.kind = 'external'")
    op.execute("DELETE FROM policies WHERE kind = 'external'")
    _allow("policies", "policykind", POLICY_KINDS)
    _allow("runs", "runkind", RUN_KINDS)
    op.drop_constraint(op.f("fk_runs_source_run_id"), "runs", type_="foreignkey")
    op.drop_index(op.f("ix_runs_source_run_id"), table_name="runs")
    op.drop_column("runs", "source_run_id")
    op.drop_column("rollouts", "source_id")
    op.drop_column("rollouts", "cost")
    op.drop_column("rollouts", "queue_seconds")
    op.drop_index("ix_judgements_run_id_judge_id", table_name="judgements")
    op.drop_index(op.f("ix_judgements_rollout_id"), table_name="judgements")
    op.drop_table("judgements")
    op.drop_index(op.f("ix_judges_policy_id"), table_name="judges")
    op.drop_table("judges")
    op.drop_table("saved_views")
    op.drop_table("network_grants")
