"""Runs, environments and checkpoints can be pinned and tagged; saved views belong to a list and can be restored."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision = "a93d5f17c2b6"
down_revision = "e2b74c81d9f0"
branch_labels = None
depends_on = None

LABELLED = ("environments", "checkpoints")


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    op.add_column("runs", sa.Column("is_pinned", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.create_index("ix_runs_is_pinned_created_at_id", "runs", ["is_pinned", "created_at", "id"])
    op.create_index("ix_runs_name_id", "runs", ["name", "id"])
    for table in LABELLED:
        op.add_column(table, sa.Column("tags", ARRAY(sa.Text()), server_default="{}", nullable=False))
        op.add_column(table, sa.Column("note", sa.Text(), server_default="", nullable=False))
        op.add_column(table, sa.Column("is_pinned", sa.Boolean(), server_default=sa.false(), nullable=False))
        op.create_index(f"ix_{table}_tags", table, ["tags"], postgresql_using="gin")
    op.add_column(
        "saved_views",
        sa.Column(
            "listing",
            sa.Enum("rollouts", "runs", name="listing", native_enum=False, create_constraint=True, length=32),
            server_default="rollouts",
            nullable=False,
        ),
    )
    op.add_column("saved_views", sa.Column("columns", sa.Text(), server_default="", nullable=False))
    op.add_column("saved_views", sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True))
    op.drop_constraint("uq_saved_views_person_id_name", "saved_views")
    op.create_unique_constraint(
        "uq_saved_views_person_id_listing_name", "saved_views", ["person_id", "listing", "name"]
    )


def downgrade() -> None:
    op.execute("DELETE FROM saved_views WHERE listing <> 'rollouts' OR deleted_at IS NOT NULL")
    op.drop_constraint("uq_saved_views_person_id_listing_name", "saved_views")
    op.create_unique_constraint("uq_saved_views_person_id_name", "saved_views", ["person_id", "name"])
    for column in ("deleted_at", "columns", "listing"):
        op.drop_column("saved_views", column)
    for table in ("runs", *LABELLED):
        op.drop_column(table, "is_pinned")
    op.drop_index("ix_runs_name_id", "runs")
    for table in LABELLED:
        op.drop_column(table, "note")
        op.drop_column(table, "tags")
