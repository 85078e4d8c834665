"""An alarm may be answered by saving memory."""

import sqlalchemy as sa
from alembic import op

revision = "5b7d20c94e1f"
down_revision = "e40b7d92a6c8"
branch_labels = None
depends_on = None

_BEFORE = ("lower_rate", "pause", "stop", "roll_back", "dismiss")


def _allow(*answers: str) -> None:
    listed = ", ".join(f"'{answer}'" for answer in answers)
    op.execute("SET lock_timeout = '5s'")
    op.drop_constraint(op.f("ck_alarms_alarmanswer"), "alarms", type_="check")
    op.create_check_constraint(op.f("ck_alarms_alarmanswer"), "alarms", f"answer IN ({listed})")


def upgrade() -> None:
    _allow("lower_rate", "pause", "stop", "roll_back", "save_memory", "dismiss")


def downgrade() -> None:
    op.execute(sa.text("UPDATE alarms SET answer = 'dismiss' WHERE answer = 'save_memory'"))
    _allow(*_BEFORE)
