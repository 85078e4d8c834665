"""Read-only links to runs, comparisons, environments, leaderboards and safeguards reports."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "c7d05b3e91a4"
down_revision = "a93d5f17c2b6"
branch_labels = None
depends_on = None

KINDS = ("run", "comparison", "environment", "leaderboard", "safeguards")


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    op.create_table(
        "shares",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column(
            "kind",
            sa.Enum(*KINDS, name="sharekind", native_enum=False, create_constraint=True, length=32),
            nullable=False,
        ),
        sa.Column("name", sa.String(length=300), nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=True),
        sa.Column("environment_id", sa.UUID(), nullable=True),
        sa.Column("choice", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("token_hash", sa.LargeBinary(length=32), nullable=False),
        sa.Column("created_by", sa.UUID(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("views", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_shares_run_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["environments.id"], name=op.f("fk_shares_environment_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["created_by"], ["people.id"], name=op.f("fk_shares_created_by"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_shares")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_shares_token_hash")),
    )
    for column in ("run_id", "environment_id", "created_by"):
        op.create_index(op.f(f"ix_shares_{column}"), "shares", [column])


def downgrade() -> None:
    op.drop_table("shares")
