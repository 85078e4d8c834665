"""Episodes that filled the context of the model have a stop reason of their own."""

from collections.abc import Iterable

from alembic import op

revision = "e81b5d3a9c47"
down_revision = "c4a7e19d52f8"
branch_labels = None
depends_on = None

_NAME = "ck_rollouts_stopreason"
_REASONS = ("done", "max_turns", "token_limit", "context_full", "unparsable", "episode_timeout", "abandoned")


def upgrade() -> None:
    _replace(_REASONS)


def downgrade() -> None:
    op.execute("UPDATE rollouts SET stop_reason = 'token_limit' WHERE stop_reason = 'context_full'")
    _replace(reason for reason in _REASONS if reason != "context_full")


def _replace(reasons: Iterable[str]) -> None:
    """Replace the check, which reads the table once."""
    op.execute("SET lock_timeout = '5s'")
    values = ", ".join(f"'{reason}'" for reason in reasons)
    op.execute(f"ALTER TABLE rollouts DROP CONSTRAINT {_NAME}")
    op.execute(f"ALTER TABLE rollouts ADD CONSTRAINT {_NAME} CHECK (stop_reason IN ({values}))")
