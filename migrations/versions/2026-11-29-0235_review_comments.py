"""Comments on items under review, and notices to one person."""

import sqlalchemy as sa
from alembic import op

revision = "c1e6a20d5b84"
down_revision = "c5f1e09a7d34"
branch_labels = None
depends_on = None

KINDS = ["alarm", "intervention", "run_failed", "certificate_expired", "onset", "judging", "rescoring"]


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    op.create_table(
        "review_comments",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("item_id", sa.UUID(), nullable=False),
        sa.Column("person_id", sa.UUID(), nullable=True),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["item_id"], ["review_items.id"], name=op.f("fk_review_comments_item_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["person_id"], ["people.id"], name=op.f("fk_review_comments_person_id"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_review_comments")),
    )
    op.create_index(op.f("ix_review_comments_item_id"), "review_comments", ["item_id"])
    op.add_column("notices", sa.Column("person_id", sa.UUID(), nullable=True))
    op.create_index(op.f("ix_notices_person_id"), "notices", ["person_id"])
    op.create_foreign_key(op.f("fk_notices_person_id"), "notices", "people", ["person_id"], ["id"], ondelete="CASCADE")
    _allow([*KINDS, "assigned", "mentioned", "test"])


def downgrade() -> None:
    op.execute("DELETE FROM notices WHERE person_id IS NOT NULL")
    _allow([*KINDS, "test"])
    op.drop_constraint(op.f("fk_notices_person_id"), "notices", type_="foreignkey")
    op.drop_index(op.f("ix_notices_person_id"), "notices")
    op.drop_column("notices", "person_id")
    op.drop_table("review_comments")


def _allow(kinds: list[str]) -> None:
    op.drop_constraint(op.f("ck_notices_noticekind"), "notices", type_="check")
    op.create_check_constraint(op.f("ck_notices_noticekind"), "notices", sa.column("kind").in_(kinds))
