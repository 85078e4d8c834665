"""Rollouts and groups of impossible tasks have a phase of their own."""

from alembic import op

revision = "b62f9d40c1e5"
down_revision = "2f6b9c4e8d13"
branch_labels = None
depends_on = None

_BEFORE = ("evaluation", "check", "play", "warm_up", "train", "heldout")


def _allow(*phases: str) -> None:
    listed = ", ".join(f"'{phase}'" for phase in phases)
    for table in ("rollouts", "groups"):
        op.drop_constraint(op.f(f"ck_{table}_phase"), table, type_="check")
        op.create_check_constraint(op.f(f"ck_{table}_phase"), table, f"phase IN ({listed})")


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    _allow(*_BEFORE, "canary")


def downgrade() -> None:
    op.execute("DELETE FROM rollouts WHERE phase = 'canary'")
    op.execute("DELETE FROM groups WHERE phase = 'canary'")
    _allow(*_BEFORE)
