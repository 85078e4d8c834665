"""Notices, where they are sent, each sending, and who has read what."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "7d1e0c64b2f8"
down_revision = "c3f5a1d27b90"
branch_labels = None
depends_on = None


def _words(name: str, *values: str) -> sa.Enum:
    return sa.Enum(*values, name=name, native_enum=False, create_constraint=True, length=32)


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    op.create_table(
        "notices",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column(
            "kind",
            _words(
                "noticekind",
                "alarm",
                "intervention",
                "run_failed",
                "certificate_expired",
                "onset",
                "judging",
                "rescoring",
                "test",
            ),
            nullable=False,
        ),
        sa.Column("title", sa.String(length=200), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("path", sa.String(length=500), nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=True),
        sa.Column("evidence", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_notices_run_id"), ondelete="SET NULL"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_notices")),
    )
    op.create_index("ix_notices_created_at_id", "notices", ["created_at", "id"], unique=False)
    op.create_index(op.f("ix_notices_run_id"), "notices", ["run_id"], unique=False)
    op.create_table(
        "notice_destinations",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("kind", _words("destinationkind", "webhook", "email"), nullable=False),
        sa.Column("kinds", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("configuration", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=True),
        sa.Column("is_enabled", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("created_by", sa.UUID(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["created_by"], ["people.id"], name=op.f("fk_notice_destinations_created_by"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_notice_destinations")),
        sa.UniqueConstraint("name", name=op.f("uq_notice_destinations_name")),
    )
    op.create_table(
        "notice_reads",
        sa.Column("person_id", sa.UUID(), nullable=False),
        sa.Column("notice_id", sa.UUID(), nullable=False),
        sa.Column("read_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["person_id"], ["people.id"], name=op.f("fk_notice_reads_person_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["notice_id"], ["notices.id"], name=op.f("fk_notice_reads_notice_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("person_id", "notice_id", name=op.f("pk_notice_reads")),
    )
    op.create_index(op.f("ix_notice_reads_notice_id"), "notice_reads", ["notice_id"], unique=False)
    op.create_table(
        "notice_deliveries",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("notice_id", sa.UUID(), nullable=False),
        sa.Column("destination_id", sa.UUID(), nullable=False),
        sa.Column("status", _words("deliverystatus", "waiting", "delivered", "failed"), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("delivered_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["notice_id"], ["notices.id"], name=op.f("fk_notice_deliveries_notice_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["destination_id"],
            ["notice_destinations.id"],
            name=op.f("fk_notice_deliveries_destination_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_notice_deliveries")),
        sa.UniqueConstraint("notice_id", "destination_id", name=op.f("uq_notice_deliveries_notice_id_destination_id")),
    )
    op.create_index("ix_notice_deliveries_created_at_id", "notice_deliveries", ["created_at", "id"], unique=False)
    op.create_index(op.f("ix_notice_deliveries_destination_id"), "notice_deliveries", ["destination_id"], unique=False)
    op.create_index(
        "ix_notice_deliveries_due",
        "notice_deliveries",
        ["next_at"],
        unique=False,
        postgresql_where=sa.text("status = 'waiting'"),
    )


def downgrade() -> None:
    op.drop_table("notice_deliveries")
    op.drop_table("notice_reads")
    op.drop_table("notice_destinations")
    op.drop_table("notices")
