"""Sessions record device and address, tokens their origin and scope; attempts are counted by window."""

import sqlalchemy as sa
from alembic import op

revision = "8c41d7e5a960"
down_revision = "5b1f0c7e92d4"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    op.add_column("web_sessions", sa.Column("device", sa.String(60), server_default="", nullable=False))
    op.add_column("web_sessions", sa.Column("address", sa.String(64), server_default="", nullable=False))
    for name in ("is_read_only", "is_local"):
        op.add_column("api_tokens", sa.Column(name, sa.Boolean(), server_default=sa.false(), nullable=False))
    op.add_column("api_tokens", sa.Column("parent_id", sa.UUID(), nullable=True))
    op.add_column("api_tokens", sa.Column("session_id", sa.UUID(), nullable=True))
    for column, table, ondelete in (("parent_id", "api_tokens", "CASCADE"), ("session_id", "web_sessions", "SET NULL")):
        op.create_foreign_key(op.f(f"fk_api_tokens_{column}"), "api_tokens", table, [column], ["id"], ondelete=ondelete)
        op.create_index(op.f(f"ix_api_tokens_{column}"), "api_tokens", [column])
    # Only the token that a start leaves in the data folder never expires.
    op.execute(
        "UPDATE api_tokens SET is_local = true WHERE expires_at IS NULL AND name = 'command line of this machine'"
    )
    op.create_table(
        "attempt_limits",
        sa.Column("key", sa.LargeBinary(32), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("resets_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_attempt_limits")),
    )
    op.create_index(op.f("ix_attempt_limits_resets_at"), "attempt_limits", ["resets_at"])
    op.drop_table("sign_in_attempts")


def downgrade() -> None:
    op.create_table(
        "sign_in_attempts",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("key", sa.String(300), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sign_in_attempts")),
    )
    op.create_index("ix_sign_in_attempts_key_at", "sign_in_attempts", ["key", "at"])
    op.drop_table("attempt_limits")
    for column in ("session_id", "parent_id"):
        op.drop_constraint(op.f(f"fk_api_tokens_{column}"), "api_tokens", type_="foreignkey")
        op.drop_column("api_tokens", column)
    for column in ("is_local", "is_read_only"):
        op.drop_column("api_tokens", column)
    for column in ("address", "device"):
        op.drop_column("web_sessions", column)
