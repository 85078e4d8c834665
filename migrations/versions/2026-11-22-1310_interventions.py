"""What the actions of detectors did at each step of a training run."""

import sqlalchemy as sa
from alembic import op

revision = "5b2f7a90e1c4"
down_revision = "b62f9d40c1e5"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    op.create_table(
        "interventions",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("detector", sa.String(length=60), nullable=False),
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
            nullable=False,
        ),
        sa.Column("rollouts", sa.Integer(), nullable=False),
        sa.Column("sentence", sa.Text(), nullable=False),
        sa.Column("alarm_id", sa.UUID(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["alarm_id"], ["alarms.id"], name=op.f("fk_interventions_alarm_id"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_interventions_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_interventions")),
        sa.UniqueConstraint("run_id", "step", "detector", name=op.f("uq_interventions_run_id_step_detector")),
    )


def downgrade() -> None:
    op.drop_table("interventions")
