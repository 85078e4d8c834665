"""Expected harm of review items, the limit of the audit sample, and what each member is notified of."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "b7d40c95e21a"
down_revision = "c7d05b3e91a4"
branch_labels = None
depends_on = None


KINDS = [
    *("alarm", "intervention", "run_failed", "certificate_expired", "onset", "judging", "rescoring"),
    *("assigned", "mentioned", "test"),
]
ADDED = ["run_finished", "review_waiting", "regression", "digest"]


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    op.add_column("review_items", sa.Column("harm", sa.DOUBLE_PRECISION(), nullable=True))
    op.create_index(
        "ix_review_items_harm",
        "review_items",
        ["harm", "id"],
        postgresql_where=sa.text("verdict IS NULL AND harm IS NOT NULL"),
    )
    op.create_table(
        "audit_limits",
        sa.Column("id", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("per_day", sa.Integer(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_audit_limits_single")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_limits")),
    )
    frequency = sa.Enum(
        *("never", "immediately", "daily", "weekly"),
        name="emailfrequency",
        native_enum=False,
        create_constraint=True,
        length=32,
    )
    op.create_table(
        "notice_preferences",
        sa.Column("person_id", sa.UUID(), nullable=False),
        sa.Column("muted", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("email", frequency, nullable=False),
        sa.Column("email_kinds", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("digest_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["person_id"], ["people.id"], name=op.f("fk_notice_preferences_person_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("person_id", name=op.f("pk_notice_preferences")),
    )
    op.add_column("notice_deliveries", sa.Column("person_id", sa.UUID(), nullable=True))
    op.create_index(op.f("ix_notice_deliveries_person_id"), "notice_deliveries", ["person_id"])
    op.create_foreign_key(
        op.f("fk_notice_deliveries_person_id"),
        "notice_deliveries",
        "people",
        ["person_id"],
        ["id"],
        ondelete="CASCADE",
    )
    op.drop_constraint(op.f("uq_notice_deliveries_notice_id_destination_id"), "notice_deliveries", type_="unique")
    op.create_unique_constraint(
        op.f("uq_notice_deliveries_notice_id_destination_id_person_id"),
        "notice_deliveries",
        ["notice_id", "destination_id", "person_id"],
        postgresql_nulls_not_distinct=True,
    )
    _allow(
        [
            *("alarm", "intervention", "run_failed", "run_finished", "review_waiting", "regression"),
            *("certificate_expired", "onset", "judging", "rescoring", "assigned", "mentioned", "digest", "test"),
        ]
    )


def downgrade() -> None:
    op.execute(sa.text("DELETE FROM notices WHERE kind = ANY(:added)").bindparams(added=ADDED))
    _allow(KINDS)
    op.execute("DELETE FROM notice_deliveries WHERE person_id IS NOT NULL")
    op.drop_constraint(
        op.f("uq_notice_deliveries_notice_id_destination_id_person_id"), "notice_deliveries", type_="unique"
    )
    op.create_unique_constraint(
        op.f("uq_notice_deliveries_notice_id_destination_id"), "notice_deliveries", ["notice_id", "destination_id"]
    )
    op.drop_constraint(op.f("fk_notice_deliveries_person_id"), "notice_deliveries", type_="foreignkey")
    op.drop_index(op.f("ix_notice_deliveries_person_id"), "notice_deliveries")
    op.drop_column("notice_deliveries", "person_id")
    op.drop_table("notice_preferences")
    op.drop_table("audit_limits")
    op.drop_index("ix_review_items_harm", table_name="review_items")
    op.drop_column("review_items", "harm")


def _allow(kinds: list[str]) -> None:
    op.drop_constraint(op.f("ck_notices_noticekind"), "notices", type_="check")
    op.create_check_constraint(op.f("ck_notices_noticekind"), "notices", sa.column("kind").in_(kinds))
