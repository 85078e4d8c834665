"""Initial schema of 0.2, written by scripts/migrations.py."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "initial_0_2"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET lock_timeout = '5s'")
    op.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm;")
    op.create_table(
        "attempt_limits",
        sa.Column("key", sa.LargeBinary(length=32), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("resets_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_attempt_limits")),
    )
    op.create_index(op.f("ix_attempt_limits_resets_at"), "attempt_limits", ["resets_at"], unique=False)
    op.create_table(
        "people",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("email", sa.String(length=254), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column(
            "role",
            sa.Enum(
                "viewer",
                "reviewer",
                "author",
                "trainer",
                "admin",
                name="role",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("password_hash", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("disabled_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_people")),
        sa.UniqueConstraint("email", name=op.f("uq_people_email")),
    )
    op.create_table(
        "workers",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("queues", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("capabilities", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_workers")),
    )
    op.create_table(
        "audit_events",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("person_id", sa.UUID(), nullable=True),
        sa.Column("action", sa.String(length=80), nullable=False),
        sa.Column("subject_kind", sa.String(length=40), nullable=False),
        sa.Column("subject_id", sa.String(length=80), nullable=False),
        sa.Column("detail", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.ForeignKeyConstraint(
            ["person_id"], ["people.id"], name=op.f("fk_audit_events_person_id"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_events")),
    )
    op.create_index(op.f("ix_audit_events_at"), "audit_events", ["at"], unique=False)
    op.create_index("ix_audit_events_subject", "audit_events", ["subject_kind", "subject_id"], unique=False)
    op.create_table(
        "environments",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("is_built_in", sa.Boolean(), nullable=False),
        sa.Column("created_by", sa.UUID(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("archived_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["created_by"], ["people.id"], name=op.f("fk_environments_created_by"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_environments")),
        sa.UniqueConstraint("name", name=op.f("uq_environments_name")),
    )
    op.create_table(
        "lesson_files",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("artifact", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("conversations", sa.Integer(), nullable=False),
        sa.Column("statistics", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_by", sa.UUID(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["created_by"], ["people.id"], name=op.f("fk_lesson_files_created_by"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_lesson_files")),
    )
    op.create_table(
        "network_grants",
        sa.Column("content_hash", sa.String(length=64), nullable=False),
        sa.Column("granted_by", sa.UUID(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["granted_by"], ["people.id"], name=op.f("fk_network_grants_granted_by"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("content_hash", name=op.f("pk_network_grants")),
    )
    op.create_table(
        "notice_destinations",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column(
            "kind",
            sa.Enum("webhook", "email", name="destinationkind", native_enum=False, create_constraint=True, length=32),
            nullable=False,
        ),
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
        "policies",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column(
            "kind",
            sa.Enum(
                "local",
                "openai_api",
                "scripted",
                "human",
                "external",
                name="policykind",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("configuration", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=True),
        sa.Column("created_by", sa.UUID(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["created_by"], ["people.id"], name=op.f("fk_policies_created_by"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_policies")),
        sa.UniqueConstraint("name", name=op.f("uq_policies_name")),
    )
    op.create_table(
        "review_targets",
        sa.Column("person_id", sa.UUID(), nullable=False),
        sa.Column("per_day", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["person_id"], ["people.id"], name=op.f("fk_review_targets_person_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("person_id", name=op.f("pk_review_targets")),
    )
    op.create_table(
        "saved_views",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("person_id", sa.UUID(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("filter", sa.Text(), nullable=False),
        sa.Column("sort", sa.String(length=100), nullable=False),
        sa.Column("is_shared", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["person_id"], ["people.id"], name=op.f("fk_saved_views_person_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_saved_views")),
        sa.UniqueConstraint("person_id", "name", name=op.f("uq_saved_views_person_id_name")),
    )
    op.create_table(
        "sign_in_links",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("person_id", sa.UUID(), nullable=False),
        sa.Column("token_hash", sa.LargeBinary(length=32), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["person_id"], ["people.id"], name=op.f("fk_sign_in_links_person_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sign_in_links")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_sign_in_links_token_hash")),
    )
    op.create_table(
        "web_sessions",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("person_id", sa.UUID(), nullable=False),
        sa.Column("token_hash", sa.LargeBinary(length=32), nullable=False),
        sa.Column("csrf_token", sa.String(length=64), nullable=False),
        sa.Column("device", sa.String(length=60), server_default="", nullable=False),
        sa.Column("address", sa.String(length=64), server_default="", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["person_id"], ["people.id"], name=op.f("fk_web_sessions_person_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_web_sessions")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_web_sessions_token_hash")),
    )
    op.create_index(op.f("ix_web_sessions_person_id"), "web_sessions", ["person_id"], unique=False)
    op.create_table(
        "api_tokens",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("person_id", sa.UUID(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("prefix", sa.String(length=16), nullable=False),
        sa.Column("token_hash", sa.LargeBinary(length=32), nullable=False),
        sa.Column(
            "role",
            sa.Enum(
                "viewer",
                "reviewer",
                "author",
                "trainer",
                "admin",
                name="role",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("is_read_only", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("is_local", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("parent_id", sa.UUID(), nullable=True),
        sa.Column("session_id", sa.UUID(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["parent_id"], ["api_tokens.id"], name=op.f("fk_api_tokens_parent_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["person_id"], ["people.id"], name=op.f("fk_api_tokens_person_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["session_id"], ["web_sessions.id"], name=op.f("fk_api_tokens_session_id"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_tokens")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_api_tokens_token_hash")),
    )
    op.create_index(op.f("ix_api_tokens_parent_id"), "api_tokens", ["parent_id"], unique=False)
    op.create_index(op.f("ix_api_tokens_person_id"), "api_tokens", ["person_id"], unique=False)
    op.create_index(op.f("ix_api_tokens_session_id"), "api_tokens", ["session_id"], unique=False)
    op.create_table(
        "detector_settings",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("environment_id", sa.UUID(), nullable=False),
        sa.Column("detector", sa.String(length=60), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=True),
        sa.Column("thresholds", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column(
            "action",
            sa.Enum(
                "note",
                "pause",
                "screen",
                "stop_and_roll_back",
                name="action",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=True,
        ),
        sa.Column("changed_by", sa.UUID(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["changed_by"], ["people.id"], name=op.f("fk_detector_settings_changed_by"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["environment_id"],
            ["environments.id"],
            name=op.f("fk_detector_settings_environment_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_detector_settings")),
        sa.UniqueConstraint("environment_id", "detector", name=op.f("uq_detector_settings_environment_id_detector")),
    )
    op.create_table(
        "draft_trials",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("environment_id", sa.UUID(), nullable=False),
        sa.Column("person_id", sa.UUID(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("is_waiting", sa.Boolean(), nullable=False),
        sa.Column("task", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("replies", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("draft_revision", sa.Integer(), nullable=False),
        sa.Column("answer", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["environments.id"], name=op.f("fk_draft_trials_environment_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["person_id"], ["people.id"], name=op.f("fk_draft_trials_person_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_draft_trials")),
        sa.UniqueConstraint("environment_id", "person_id", name=op.f("uq_draft_trials_environment_id_person_id")),
    )
    op.create_table(
        "environment_drafts",
        sa.Column("environment_id", sa.UUID(), nullable=False),
        sa.Column("files", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("updated_by", sa.UUID(), nullable=True),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["environment_id"],
            ["environments.id"],
            name=op.f("fk_environment_drafts_environment_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["updated_by"], ["people.id"], name=op.f("fk_environment_drafts_updated_by"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("environment_id", name=op.f("pk_environment_drafts")),
    )
    op.create_table(
        "environment_imports",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("files", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("manifest", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("block", sa.Text(), nullable=False),
        sa.Column("columns_from", sa.Text(), nullable=True),
        sa.Column(
            "status",
            sa.Enum(
                "queued",
                "running",
                "paused",
                "stopped",
                "completed",
                "failed",
                name="runstatus",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("report", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("build_log", sa.Text(), nullable=False),
        sa.Column("environment_id", sa.UUID(), nullable=True),
        sa.Column("created_by", sa.UUID(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["created_by"], ["people.id"], name=op.f("fk_environment_imports_created_by"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["environment_id"],
            ["environments.id"],
            name=op.f("fk_environment_imports_environment_id"),
            ondelete="SET NULL",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_environment_imports")),
    )
    op.create_index("ix_environment_imports_created_at_id", "environment_imports", ["created_at", "id"], unique=False)
    op.create_index(
        op.f("ix_environment_imports_environment_id"), "environment_imports", ["environment_id"], unique=False
    )
    op.create_table(
        "environment_versions",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("environment_id", sa.UUID(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("content_hash", sa.String(length=64), nullable=False),
        sa.Column("files", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("manifest", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("notes", sa.Text(), nullable=False),
        sa.Column("published_by", sa.UUID(), nullable=True),
        sa.Column("published_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["environment_id"],
            ["environments.id"],
            name=op.f("fk_environment_versions_environment_id"),
            ondelete="RESTRICT",
        ),
        sa.ForeignKeyConstraint(
            ["published_by"], ["people.id"], name=op.f("fk_environment_versions_published_by"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_environment_versions")),
        sa.UniqueConstraint("environment_id", "number", name=op.f("uq_environment_versions_environment_id_number")),
    )
    op.create_index(
        op.f("ix_environment_versions_content_hash"), "environment_versions", ["content_hash"], unique=False
    )
    op.create_table(
        "graders",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column(
            "kind",
            sa.Enum(
                "judge",
                "question",
                "monitor",
                "contrast",
                name="graderkind",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("policy_id", sa.UUID(), nullable=False),
        sa.Column("settings", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_by", sa.UUID(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["created_by"], ["people.id"], name=op.f("fk_graders_created_by"), ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["policy_id"], ["policies.id"], name=op.f("fk_graders_policy_id"), ondelete="RESTRICT"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_graders")),
        sa.UniqueConstraint("name", name=op.f("uq_graders_name")),
    )
    op.create_index(op.f("ix_graders_policy_id"), "graders", ["policy_id"], unique=False)
    op.create_table(
        "preflights",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("version_id", sa.UUID(), nullable=False),
        sa.Column("configuration", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column(
            "status",
            sa.Enum(
                "queued",
                "running",
                "completed",
                "failed",
                name="preflightstatus",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("findings", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("progress", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("created_by", sa.UUID(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["created_by"], ["people.id"], name=op.f("fk_preflights_created_by"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["version_id"], ["environment_versions.id"], name=op.f("fk_preflights_version_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_preflights")),
    )
    op.create_index(op.f("ix_preflights_version_id"), "preflights", ["version_id"], unique=False)
    op.create_table(
        "runs",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column(
            "kind",
            sa.Enum(
                "evaluation",
                "training",
                "check",
                "play",
                "rescore",
                "replay",
                name="runkind",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column(
            "status",
            sa.Enum(
                "queued",
                "running",
                "paused",
                "stopped",
                "completed",
                "failed",
                name="runstatus",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("version_id", sa.UUID(), nullable=False),
        sa.Column("policy_id", sa.UUID(), nullable=True),
        sa.Column("checkpoint_id", sa.UUID(), nullable=True),
        sa.Column("configuration", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("columns", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("weights", postgresql.ARRAY(sa.DOUBLE_PRECISION()), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("stop_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("progress", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("summary", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("next_seq", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("source_run_id", sa.UUID(), nullable=True),
        sa.Column("branch_step", sa.Integer(), nullable=True),
        sa.Column("created_by", sa.UUID(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["checkpoint_id"],
            ["checkpoints.id"],
            name=op.f("fk_runs_checkpoint_id"),
            ondelete="SET NULL",
            use_alter=True,
        ),
        sa.ForeignKeyConstraint(["created_by"], ["people.id"], name=op.f("fk_runs_created_by"), ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["policy_id"], ["policies.id"], name=op.f("fk_runs_policy_id"), ondelete="RESTRICT"),
        sa.ForeignKeyConstraint(
            ["source_run_id"], ["runs.id"], name=op.f("fk_runs_source_run_id"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["version_id"], ["environment_versions.id"], name=op.f("fk_runs_version_id"), ondelete="RESTRICT"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
    )
    op.create_index(op.f("ix_runs_checkpoint_id"), "runs", ["checkpoint_id"], unique=False)
    op.create_index("ix_runs_created_at_id", "runs", ["created_at", "id"], unique=False)
    op.create_index(op.f("ix_runs_kind"), "runs", ["kind"], unique=False)
    op.create_index(op.f("ix_runs_policy_id"), "runs", ["policy_id"], unique=False)
    op.create_index(op.f("ix_runs_source_run_id"), "runs", ["source_run_id"], unique=False)
    op.create_index(op.f("ix_runs_status"), "runs", ["status"], unique=False)
    op.create_index(op.f("ix_runs_version_id"), "runs", ["version_id"], unique=False)
    op.create_table(
        "tasks",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("version_id", sa.UUID(), nullable=False),
        sa.Column(
            "split",
            sa.Enum("train", "heldout", name="split", native_enum=False, create_constraint=True, length=32),
            nullable=False,
        ),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("arguments", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.ForeignKeyConstraint(
            ["version_id"], ["environment_versions.id"], name=op.f("fk_tasks_version_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tasks")),
        sa.UniqueConstraint("version_id", "split", "index", "seed", name=op.f("uq_tasks_version_id_split_index_seed")),
    )
    op.create_table(
        "alarms",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("name", sa.String(length=60), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("sentence", sa.Text(), nullable=False),
        sa.Column("evidence", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column(
            "action",
            sa.Enum(
                "note",
                "lower_rate",
                "pause",
                "stop",
                "roll_back",
                name="alarmaction",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column(
            "answer",
            sa.Enum(
                "lower_rate",
                "pause",
                "stop",
                "roll_back",
                "save_memory",
                "dismiss",
                name="alarmanswer",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=True,
        ),
        sa.Column("answered_by", sa.UUID(), nullable=True),
        sa.Column("answered_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["answered_by"], ["people.id"], name=op.f("fk_alarms_answered_by"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_alarms_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alarms")),
    )
    op.create_index("ix_alarms_run_id_id", "alarms", ["run_id", "id"], unique=False)
    op.create_table(
        "audit_draws",
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("share", sa.DOUBLE_PRECISION(), nullable=False),
        sa.Column("drawn_seq", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_audit_draws_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_audit_draws")),
    )
    op.create_table(
        "certificates",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("version_id", sa.UUID(), nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column(
            "status",
            sa.Enum(
                "passed",
                "warned",
                "failed",
                "skipped",
                name="checkstatus",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("results", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_certificates_run_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["version_id"], ["environment_versions.id"], name=op.f("fk_certificates_version_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_certificates")),
        sa.UniqueConstraint("run_id", name=op.f("uq_certificates_run_id")),
    )
    op.create_index(op.f("ix_certificates_version_id"), "certificates", ["version_id"], unique=False)
    op.create_table(
        "checkpoints",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("policy_id", sa.UUID(), nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=True),
        sa.Column("stage", sa.String(length=16), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("artifact", sa.Text(), nullable=False),
        sa.Column("heldout_reward", sa.Double(), nullable=True),
        sa.Column("heldout", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("is_best", sa.Boolean(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("adapter", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("is_kept", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("pruned_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["policy_id"], ["policies.id"], name=op.f("fk_checkpoints_policy_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_checkpoints_run_id"), ondelete="SET NULL"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoints")),
        sa.UniqueConstraint("run_id", "stage", "step", name=op.f("uq_checkpoints_run_id_stage_step")),
    )
    op.create_index(op.f("ix_checkpoints_policy_id"), "checkpoints", ["policy_id"], unique=False)
    op.create_table(
        "grader_runs",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("grader_id", sa.UUID(), nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=True),
        sa.Column("where", sa.Text(), nullable=False),
        sa.Column("cluster", sa.String(length=300), nullable=True),
        sa.Column(
            "status",
            sa.Enum(
                "queued",
                "running",
                "paused",
                "stopped",
                "completed",
                "failed",
                name="runstatus",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("total", sa.Integer(), nullable=True),
        sa.Column("stop_requested", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("canaries", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("findings", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("tokens_in", sa.Integer(), nullable=False),
        sa.Column("tokens_out", sa.Integer(), nullable=False),
        sa.Column("cost", sa.DOUBLE_PRECISION(), nullable=True),
        sa.Column("created_by", sa.UUID(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["created_by"], ["people.id"], name=op.f("fk_grader_runs_created_by"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["grader_id"], ["graders.id"], name=op.f("fk_grader_runs_grader_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_grader_runs_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_grader_runs")),
        sa.UniqueConstraint("grader_id", "run_id", name=op.f("uq_grader_runs_grader_id_run_id")),
    )
    op.create_index(op.f("ix_grader_runs_run_id"), "grader_runs", ["run_id"], unique=False)
    op.create_table(
        "groups",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("task_id", sa.UUID(), nullable=False),
        sa.Column(
            "phase",
            sa.Enum(
                "evaluation",
                "check",
                "play",
                "warm_up",
                "train",
                "heldout",
                "canary",
                name="phase",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("training_step", sa.Integer(), nullable=True),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_groups_run_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name=op.f("fk_groups_task_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_groups")),
    )
    op.create_index("ix_groups_run_id_training_step", "groups", ["run_id", "training_step"], unique=False)
    op.create_index(op.f("ix_groups_task_id"), "groups", ["task_id"], unique=False)
    op.create_table(
        "jobs",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("name", sa.String(length=80), nullable=False),
        sa.Column(
            "queue",
            sa.Enum(
                "cpu",
                "gpu",
                "gpu-vllm",
                "gpu-unsloth",
                name="queue",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("run_id", sa.UUID(), nullable=True),
        sa.Column("arguments", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column(
            "status",
            sa.Enum(
                "queued",
                "leased",
                "done",
                "failed",
                name="jobstatus",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("lease_owner", sa.String(length=200), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("sent_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_jobs_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index(op.f("ix_jobs_lease_until"), "jobs", ["lease_until"], unique=False)
    op.create_index(op.f("ix_jobs_run_id"), "jobs", ["run_id"], unique=False)
    op.create_index("ix_jobs_status_sent_at", "jobs", ["status", "sent_at"], unique=False)
    op.create_table(
        "metric_points",
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("name", sa.String(length=120), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_metric_points_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "name", "step", "attempt", name=op.f("pk_metric_points")),
    )
    op.create_table(
        "notices",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column(
            "kind",
            sa.Enum(
                "alarm",
                "intervention",
                "run_failed",
                "certificate_expired",
                "onset",
                "judging",
                "rescoring",
                "test",
                name="noticekind",
                native_enum=False,
                create_constraint=True,
                length=32,
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
        "rollout_texts",
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_rollout_texts_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "seq", name=op.f("pk_rollout_texts")),
    )
    op.create_index(
        "ix_rollout_texts_body",
        "rollout_texts",
        ["body"],
        unique=False,
        postgresql_using="gin",
        postgresql_ops={"body": "gin_trgm_ops"},
    )
    op.create_table(
        "rollouts",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("group_id", sa.Uuid(), nullable=False),
        sa.Column("member", sa.Integer(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column(
            "phase",
            sa.Enum(
                "evaluation",
                "check",
                "play",
                "warm_up",
                "train",
                "heldout",
                "canary",
                name="phase",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("training_step", sa.Integer(), nullable=True),
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column(
            "status",
            sa.Enum(
                "completed",
                "failed",
                "cancelled",
                "playing",
                name="rolloutstatus",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column(
            "stop_reason",
            sa.Enum(
                "done",
                "max_turns",
                "token_limit",
                "unparsable",
                "episode_timeout",
                "abandoned",
                name="stopreason",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=True,
        ),
        sa.Column(
            "error_kind",
            sa.Enum(
                "policy",
                "environment",
                "sandbox",
                "judge",
                "limit",
                name="errorkind",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=True,
        ),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("attempts", sa.SmallInteger(), nullable=False),
        sa.Column("reward", sa.REAL(), nullable=True),
        sa.Column("columns", postgresql.ARRAY(sa.REAL()), nullable=True),
        sa.Column("metrics", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("opening", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("steps", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("messages", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("excerpt", sa.String(length=300), nullable=False),
        sa.Column("turns", sa.Integer(), nullable=False),
        sa.Column("tokens_in", sa.Integer(), nullable=False),
        sa.Column("tokens_out", sa.Integer(), nullable=False),
        sa.Column("tokens_cached", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("is_truncated", sa.Boolean(), nullable=False),
        sa.Column("tokens", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("advantage", sa.REAL(), nullable=True),
        sa.Column("policy_seconds", sa.REAL(), nullable=False),
        sa.Column("environment_seconds", sa.REAL(), nullable=False),
        sa.Column("queue_seconds", sa.REAL(), server_default=sa.text("0"), nullable=False),
        sa.Column("cost", sa.DOUBLE_PRECISION(), nullable=True),
        sa.Column("source_id", sa.Uuid(), nullable=True),
        sa.Column("is_demonstration", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_rollouts_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rollouts")),
        sa.UniqueConstraint("group_id", "member", name=op.f("uq_rollouts_group_id_member")),
    )
    op.create_index(
        "ix_rollouts_run_id_seq",
        "rollouts",
        ["run_id", "seq"],
        unique=True,
        postgresql_include=(
            "id",
            "group_id",
            "member",
            "phase",
            "training_step",
            "level",
            "status",
            "stop_reason",
            "error_kind",
            "attempts",
            "reward",
            "columns",
            "turns",
            "tokens_in",
            "tokens_out",
            "is_truncated",
            "advantage",
            "policy_seconds",
            "environment_seconds",
            "queue_seconds",
            "cost",
            "is_demonstration",
        ),
    )
    op.create_table(
        "run_log_lines",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.Column("level", sa.String(length=10), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_run_log_lines_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run_log_lines")),
    )
    op.create_index("ix_run_log_lines_run_id_id", "run_log_lines", ["run_id", "id"], unique=False)
    op.create_table(
        "studies",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column(
            "kind",
            sa.Enum("onset", "effort", name="studykind", native_enum=False, create_constraint=True, length=32),
            nullable=False,
        ),
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("version_id", sa.UUID(), nullable=False),
        sa.Column(
            "status",
            sa.Enum(
                "queued",
                "running",
                "paused",
                "stopped",
                "completed",
                "failed",
                name="runstatus",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("settings", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("result", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("created_by", sa.UUID(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["created_by"], ["people.id"], name=op.f("fk_studies_created_by"), ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_studies_run_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["version_id"], ["environment_versions.id"], name=op.f("fk_studies_version_id"), ondelete="RESTRICT"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_studies")),
    )
    op.create_index("ix_studies_run_id_id", "studies", ["run_id", "id"], unique=False)
    op.create_table(
        "audit_samples",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("rollout_id", sa.UUID(), nullable=False),
        sa.Column("lot", sa.DOUBLE_PRECISION(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["rollout_id"], ["rollouts.id"], name=op.f("fk_audit_samples_rollout_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_audit_samples_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_samples")),
        sa.UniqueConstraint("rollout_id", name=op.f("uq_audit_samples_rollout_id")),
    )
    op.create_index(op.f("ix_audit_samples_run_id"), "audit_samples", ["run_id"], unique=False)
    op.create_table(
        "exports",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("checkpoint_id", sa.UUID(), nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column(
            "status",
            sa.Enum(
                "queued",
                "running",
                "completed",
                "refused",
                "failed",
                name="exportstatus",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column(
            "form",
            sa.Enum(
                "full",
                "adapter",
                "merged",
                "merged_dequantised",
                "gguf",
                name="exportform",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            server_default="full",
            nullable=False,
        ),
        sa.Column("options", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("artifact", sa.Text(), nullable=True),
        sa.Column("card", sa.Text(), nullable=False),
        sa.Column("passport", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("progress", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_by", sa.UUID(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["checkpoint_id"], ["checkpoints.id"], name=op.f("fk_exports_checkpoint_id"), ondelete="RESTRICT"
        ),
        sa.ForeignKeyConstraint(["created_by"], ["people.id"], name=op.f("fk_exports_created_by"), ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_exports_run_id"), ondelete="RESTRICT"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_exports")),
    )
    op.create_index(op.f("ix_exports_checkpoint_id"), "exports", ["checkpoint_id"], unique=False)
    op.create_index(op.f("ix_exports_run_id"), "exports", ["run_id"], unique=False)
    op.create_table(
        "fixtures",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("environment_id", sa.UUID(), nullable=False),
        sa.Column("rollout_id", sa.UUID(), nullable=True),
        sa.Column("task", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("replies", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("lowest", sa.Double(), nullable=True),
        sa.Column("highest", sa.Double(), nullable=True),
        sa.Column("comment", sa.Text(), nullable=False),
        sa.Column("created_by", sa.UUID(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("withdrawn_by", sa.UUID(), nullable=True),
        sa.Column("withdrawn_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("withdrawn_because", sa.Text(), server_default="", nullable=False),
        sa.ForeignKeyConstraint(
            ["created_by"], ["people.id"], name=op.f("fk_fixtures_created_by"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["environments.id"], name=op.f("fk_fixtures_environment_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["rollout_id"], ["rollouts.id"], name=op.f("fk_fixtures_rollout_id"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["withdrawn_by"], ["people.id"], name=op.f("fk_fixtures_withdrawn_by"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_fixtures")),
    )
    op.create_index(op.f("ix_fixtures_environment_id"), "fixtures", ["environment_id"], unique=False)
    op.create_index(op.f("ix_fixtures_rollout_id"), "fixtures", ["rollout_id"], unique=False)
    op.create_table(
        "flags",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("rollout_id", sa.UUID(), nullable=True),
        sa.Column("detector", sa.String(length=60), nullable=False),
        sa.Column("key", sa.String(length=120), nullable=False),
        sa.Column(
            "severity",
            sa.Enum("note", "warning", "alert", name="severity", native_enum=False, create_constraint=True, length=32),
            nullable=False,
        ),
        sa.Column("score", sa.REAL(), nullable=False),
        sa.Column("sentence", sa.Text(), nullable=False),
        sa.Column("evidence", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("cluster", sa.String(length=200), nullable=True),
        sa.Column("training_step", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollouts.id"], name=op.f("fk_flags_rollout_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_flags_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_flags")),
        sa.UniqueConstraint("run_id", "detector", "key", name=op.f("uq_flags_run_id_detector_key")),
    )
    op.create_index("ix_flags_created_at_id", "flags", ["created_at", "id"], unique=False)
    op.create_index(op.f("ix_flags_rollout_id"), "flags", ["rollout_id"], unique=False)
    op.create_table(
        "grades",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("grader_id", sa.UUID(), nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("rollout_id", sa.UUID(), nullable=False),
        sa.Column(
            "status",
            sa.Enum("completed", "failed", name="gradestatus", native_enum=False, create_constraint=True, length=32),
            nullable=False,
        ),
        sa.Column("score", sa.REAL(), nullable=True),
        sa.Column("spread", sa.REAL(), nullable=True),
        sa.Column("verdicts", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("answer", sa.String(length=60), nullable=True),
        sa.Column("confidence", sa.REAL(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("citations", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("dropped", sa.Integer(), nullable=False),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("raw", sa.Text(), nullable=True),
        sa.Column("tokens_in", sa.Integer(), nullable=False),
        sa.Column("tokens_out", sa.Integer(), nullable=False),
        sa.Column("cost", sa.DOUBLE_PRECISION(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["grader_id"], ["graders.id"], name=op.f("fk_grades_grader_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollouts.id"], name=op.f("fk_grades_rollout_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_grades_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_grades")),
        sa.UniqueConstraint("grader_id", "rollout_id", name=op.f("uq_grades_grader_id_rollout_id")),
    )
    op.create_index(op.f("ix_grades_rollout_id"), "grades", ["rollout_id"], unique=False)
    op.create_index(
        "ix_grades_run_id_grader_id",
        "grades",
        ["run_id", "grader_id"],
        unique=False,
        postgresql_include=["rollout_id", "score", "answer"],
    )
    op.create_table(
        "interventions",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("detector", sa.String(length=60), nullable=False),
        sa.Column(
            "action",
            sa.Enum(
                "note",
                "pause",
                "screen",
                "stop_and_roll_back",
                name="action",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("rollouts", sa.Integer(), nullable=False),
        sa.Column("sentence", sa.Text(), nullable=False),
        sa.Column("alarm_id", sa.UUID(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["alarm_id"], ["alarms.id"], name=op.f("fk_interventions_alarm_id"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_interventions_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_interventions")),
        sa.UniqueConstraint("run_id", "step", "detector", name=op.f("uq_interventions_run_id_step_detector")),
    )
    op.create_table(
        "notice_deliveries",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("notice_id", sa.UUID(), nullable=False),
        sa.Column("destination_id", sa.UUID(), nullable=False),
        sa.Column(
            "status",
            sa.Enum(
                "waiting",
                "delivered",
                "failed",
                name="deliverystatus",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("delivered_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["destination_id"],
            ["notice_destinations.id"],
            name=op.f("fk_notice_deliveries_destination_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["notice_id"], ["notices.id"], name=op.f("fk_notice_deliveries_notice_id"), ondelete="CASCADE"
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
    op.create_table(
        "notice_reads",
        sa.Column("person_id", sa.UUID(), nullable=False),
        sa.Column("notice_id", sa.UUID(), nullable=False),
        sa.Column("read_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["notice_id"], ["notices.id"], name=op.f("fk_notice_reads_notice_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["person_id"], ["people.id"], name=op.f("fk_notice_reads_person_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("person_id", "notice_id", name=op.f("pk_notice_reads")),
    )
    op.create_index(op.f("ix_notice_reads_notice_id"), "notice_reads", ["notice_id"], unique=False)
    op.create_table(
        "review_items",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("environment_id", sa.UUID(), nullable=False),
        sa.Column("rollout_id", sa.UUID(), nullable=True),
        sa.Column("detectors", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("cluster", sa.String(length=300), nullable=True),
        sa.Column("suspicion", sa.DOUBLE_PRECISION(), nullable=False),
        sa.Column("reward_share", sa.DOUBLE_PRECISION(), nullable=False),
        sa.Column("rank", sa.DOUBLE_PRECISION(), nullable=False),
        sa.Column(
            "verdict",
            sa.Enum(
                "honest",
                "hack",
                "broken_reward",
                "unsure",
                name="verdict",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=True,
        ),
        sa.Column("reviewers", postgresql.ARRAY(sa.Uuid()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["environments.id"], name=op.f("fk_review_items_environment_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["rollout_id"], ["rollouts.id"], name=op.f("fk_review_items_rollout_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_review_items_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_review_items")),
        sa.UniqueConstraint("rollout_id", name=op.f("uq_review_items_rollout_id")),
    )
    op.create_index("ix_review_items_cluster", "review_items", ["environment_id", "cluster"], unique=False)
    op.create_index("ix_review_items_created_at_id", "review_items", ["created_at", "id"], unique=False)
    op.create_index(op.f("ix_review_items_run_id"), "review_items", ["run_id"], unique=False)
    op.create_index(
        "ix_review_items_waiting",
        "review_items",
        ["rank", "id"],
        unique=False,
        postgresql_where=sa.text("verdict IS NULL"),
    )
    op.create_index(
        "ix_review_items_waiting_environment",
        "review_items",
        ["environment_id", "rank", "id"],
        unique=False,
        postgresql_where=sa.text("verdict IS NULL"),
    )
    op.create_index(
        "ix_review_items_waiting_run",
        "review_items",
        ["run_id", "rank", "id"],
        unique=False,
        postgresql_where=sa.text("verdict IS NULL"),
    )
    op.create_table(
        "setting_changes",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("name", sa.String(length=80), nullable=False),
        sa.Column("before", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("after", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("alarm_id", sa.UUID(), nullable=True),
        sa.Column("asked_by", sa.UUID(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["alarm_id"], ["alarms.id"], name=op.f("fk_setting_changes_alarm_id"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["asked_by"], ["people.id"], name=op.f("fk_setting_changes_asked_by"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_setting_changes_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_setting_changes")),
    )
    op.create_index("ix_setting_changes_run_id_id", "setting_changes", ["run_id", "id"], unique=False)
    op.create_table(
        "study_checkpoints",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("study_id", sa.UUID(), nullable=False),
        sa.Column("checkpoint_id", sa.UUID(), nullable=True),
        sa.Column("run_id", sa.UUID(), nullable=True),
        sa.Column("is_base", sa.Boolean(), nullable=False),
        sa.Column("stage", sa.String(length=16), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("rollouts", sa.Integer(), nullable=True),
        sa.Column("flagged", sa.Integer(), nullable=True),
        sa.Column("chance", sa.DOUBLE_PRECISION(), nullable=True),
        sa.Column("is_above", sa.Boolean(), nullable=True),
        sa.Column("succeeded", sa.Integer(), nullable=True),
        sa.Column("reasoned", sa.Integer(), nullable=True),
        sa.Column("chosen", sa.Integer(), nullable=True),
        sa.Column("is_done", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["checkpoint_id"], ["checkpoints.id"], name=op.f("fk_study_checkpoints_checkpoint_id"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_study_checkpoints_run_id"), ondelete="SET NULL"),
        sa.ForeignKeyConstraint(
            ["study_id"], ["studies.id"], name=op.f("fk_study_checkpoints_study_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_study_checkpoints")),
        sa.UniqueConstraint("study_id", "checkpoint_id", name=op.f("uq_study_checkpoints_study_id_checkpoint_id")),
    )
    op.create_index(op.f("ix_study_checkpoints_run_id"), "study_checkpoints", ["run_id"], unique=False)
    op.create_table(
        "effort_replies",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("study_checkpoint_id", sa.UUID(), nullable=False),
        sa.Column("rollout_id", sa.Uuid(), nullable=False),
        sa.Column("task", sa.String(length=80), nullable=False),
        sa.Column("characters", sa.Integer(), nullable=False),
        sa.Column("values", postgresql.ARRAY(sa.DOUBLE_PRECISION()), nullable=False),
        sa.Column("score", sa.DOUBLE_PRECISION(), nullable=False),
        sa.ForeignKeyConstraint(
            ["study_checkpoint_id"],
            ["study_checkpoints.id"],
            name=op.f("fk_effort_replies_study_checkpoint_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_effort_replies")),
        sa.UniqueConstraint(
            "study_checkpoint_id", "rollout_id", name=op.f("uq_effort_replies_study_checkpoint_id_rollout_id")
        ),
    )
    op.create_table(
        "review_assignments",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("item_id", sa.UUID(), nullable=False),
        sa.Column("person_id", sa.UUID(), nullable=False),
        sa.Column("assigned_by", sa.UUID(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["assigned_by"], ["people.id"], name=op.f("fk_review_assignments_assigned_by"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["item_id"], ["review_items.id"], name=op.f("fk_review_assignments_item_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["person_id"], ["people.id"], name=op.f("fk_review_assignments_person_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_review_assignments")),
        sa.UniqueConstraint("item_id", "person_id", name=op.f("uq_review_assignments_item_id_person_id")),
    )
    op.create_index(op.f("ix_review_assignments_person_id"), "review_assignments", ["person_id"], unique=False)
    op.create_table(
        "verdicts",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("rollout_id", sa.UUID(), nullable=True),
        sa.Column("flag_id", sa.UUID(), nullable=True),
        sa.Column(
            "verdict",
            sa.Enum(
                "honest",
                "hack",
                "broken_reward",
                "unsure",
                name="verdict",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("comment", sa.Text(), nullable=False),
        sa.Column("is_blind", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("is_bulk", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("person_id", sa.UUID(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("taken_back_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["flag_id"], ["flags.id"], name=op.f("fk_verdicts_flag_id"), ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["person_id"], ["people.id"], name=op.f("fk_verdicts_person_id"), ondelete="SET NULL"),
        sa.ForeignKeyConstraint(
            ["rollout_id"], ["rollouts.id"], name=op.f("fk_verdicts_rollout_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_verdicts_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_verdicts")),
    )
    op.create_index(op.f("ix_verdicts_flag_id"), "verdicts", ["flag_id"], unique=False)
    op.create_index(op.f("ix_verdicts_rollout_id"), "verdicts", ["rollout_id"], unique=False)
    op.create_index(op.f("ix_verdicts_run_id"), "verdicts", ["run_id"], unique=False)
    op.create_foreign_key(
        op.f("fk_runs_checkpoint_id"),
        "runs",
        "checkpoints",
        ["checkpoint_id"],
        ["id"],
        ondelete="SET NULL",
        use_alter=True,
    )
    op.execute(
        "CREATE FUNCTION refuse_changed_version() RETURNS trigger LANGUAGE plpgsql AS $$\nBEGIN\n    IF to_jsonb(NEW) - 'published_by' IS DISTINCT FROM to_jsonb(OLD) - 'published_by' THEN\n        RAISE EXCEPTION 'a published environment version never changes';\n    END IF;\n    RETURN NEW;\nEND $$;"
    )
    op.execute(
        "CREATE TRIGGER environment_versions_never_change BEFORE UPDATE ON environment_versions\nFOR EACH ROW EXECUTE FUNCTION refuse_changed_version();"
    )
    op.execute(
        "ALTER TABLE rollouts SET (\n    autovacuum_vacuum_insert_threshold = 5000,\n    autovacuum_vacuum_insert_scale_factor = 0,\n    autovacuum_analyze_scale_factor = 0.02\n);"
    )
