"""Saved views of the lists of environments and checkpoints."""

import sqlalchemy as sa
from alembic import op

revision = "c41d7e90b2a6"
down_revision = "a7d05e3bc914"
branch_labels = None
depends_on = None

LISTS = ("rollouts", "runs", "environments", "checkpoints")


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    _allow(LISTS)


def downgrade() -> None:
    op.execute("DELETE FROM saved_views WHERE listing NOT IN ('rollouts', 'runs')")
    _allow(LISTS[:2])


def _allow(names: tuple[str, ...]) -> None:
    op.drop_constraint(op.f("ck_saved_views_listing"), "saved_views", type_="check")
    op.create_check_constraint(op.f("ck_saved_views_listing"), "saved_views", sa.column("listing").in_(names))
