"""Projects: environments, policies and runs belong to one, and members may have another role in it."""

import sqlalchemy as sa
from alembic import op

revision = "c5f1e09a7d34"
down_revision = "a4d07f6b92e1"
branch_labels = None
depends_on = None

DEFAULT = "00000000-0000-4000-8000-000000000001"
ROLES = ("viewer", "reviewer", "author", "trainer", "admin")
OWNED = ("environments", "policies", "runs")


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    now = sa.text("now()")
    op.create_table(
        "projects",
        sa.Column("id", sa.UUID(), primary_key=True),
        sa.Column("name", sa.String(60), nullable=False, unique=True),
        sa.Column("description", sa.Text(), server_default="", nullable=False),
        sa.Column("is_restricted", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("created_by", sa.UUID(), sa.ForeignKey("people.id", ondelete="SET NULL")),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=now, nullable=False),
    )
    op.create_table(
        "project_members",
        sa.Column("project_id", sa.UUID(), sa.ForeignKey("projects.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("person_id", sa.UUID(), sa.ForeignKey("people.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("role", sa.Enum(*ROLES, name="role", native_enum=False, create_constraint=True, length=32)),
        sa.Column("added_by", sa.UUID(), sa.ForeignKey("people.id", ondelete="SET NULL")),
        sa.Column("added_at", sa.DateTime(timezone=True), server_default=now, nullable=False),
    )
    op.alter_column("project_members", "role", nullable=False)
    op.create_index("ix_project_members_person_id", "project_members", ["person_id"])
    op.execute(f"INSERT INTO projects (id, name) VALUES ('{DEFAULT}', 'Default')")
    for table in OWNED:  # a constant default rewrites no row
        op.add_column(table, sa.Column("project_id", sa.UUID(), server_default=DEFAULT, nullable=False))
        op.create_foreign_key(None, table, "projects", ["project_id"], ["id"], ondelete="RESTRICT")
    op.create_index("ix_environments_project_id", "environments", ["project_id"])
    op.create_index("ix_policies_project_id", "policies", ["project_id"])
    op.create_index("ix_runs_project_id_created_at_id", "runs", ["project_id", "created_at", "id"])


def downgrade() -> None:
    for table in OWNED:
        op.drop_column(table, "project_id")
    op.drop_table("project_members")
    op.drop_table("projects")
