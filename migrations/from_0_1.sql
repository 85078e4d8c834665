-- Converts a database of Proctor 0.1, whichever of its revisions it has, to the initial schema of 0.2
-- (`proctor migrate-data`). Each section takes the database from one revision to the next, in one transaction with all
-- others. The sections up to 8c41d7e5a960 are the migrations of 0.1 and never change; the last one makes the changes
-- that 0.2 made to the tables, and tests/ops/test_migrate_data.py checks that it ends at the initial schema.

-- 38e3d2bf51d4 -> 48e1766ab60f
CREATE TABLE draft_trials (
    id UUID NOT NULL,
    environment_id UUID NOT NULL,
    person_id UUID NOT NULL,
    revision INTEGER NOT NULL,
    is_waiting BOOLEAN NOT NULL,
    task JSONB NOT NULL,
    replies TEXT[] NOT NULL,
    draft_revision INTEGER NOT NULL,
    answer JSONB NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_draft_trials PRIMARY KEY (id),
    CONSTRAINT fk_draft_trials_environment_id FOREIGN KEY(environment_id) REFERENCES environments (id) ON DELETE CASCADE,
    CONSTRAINT fk_draft_trials_person_id FOREIGN KEY(person_id) REFERENCES people (id) ON DELETE CASCADE,
    CONSTRAINT uq_draft_trials_environment_id_person_id UNIQUE (environment_id, person_id)
);
CREATE TABLE environment_imports (
    id UUID NOT NULL,
    name VARCHAR(40) NOT NULL,
    kind VARCHAR(32) NOT NULL,
    source TEXT NOT NULL,
    files JSONB NOT NULL,
    manifest JSONB NOT NULL,
    block TEXT NOT NULL,
    columns_from TEXT,
    status VARCHAR(32) NOT NULL,
    phase TEXT NOT NULL,
    report JSONB NOT NULL,
    build_log TEXT NOT NULL,
    environment_id UUID,
    created_by UUID,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_environment_imports PRIMARY KEY (id),
    CONSTRAINT fk_environment_imports_created_by FOREIGN KEY(created_by) REFERENCES people (id) ON DELETE SET NULL,
    CONSTRAINT fk_environment_imports_environment_id FOREIGN KEY(environment_id) REFERENCES environments (id) ON DELETE SET NULL,
    CONSTRAINT ck_environment_imports_runstatus CHECK (status IN ('queued', 'running', 'paused', 'stopped', 'completed', 'failed'))
);
CREATE INDEX ix_environment_imports_created_at_id ON environment_imports (created_at, id);
CREATE INDEX ix_environment_imports_environment_id ON environment_imports (environment_id);
ALTER TABLE rollouts ADD COLUMN is_demonstration BOOLEAN DEFAULT false NOT NULL;

-- 48e1766ab60f -> 9da77917eb25
ALTER TABLE runs DROP CONSTRAINT ck_runs_runkind;
ALTER TABLE runs ADD CONSTRAINT ck_runs_runkind CHECK (kind IN ('evaluation', 'training', 'check', 'play', 'rescore', 'replay'));
ALTER TABLE policies DROP CONSTRAINT ck_policies_policykind;
ALTER TABLE policies ADD CONSTRAINT ck_policies_policykind CHECK (kind IN ('local', 'openai_api', 'scripted', 'human', 'external'));
CREATE TABLE network_grants (
    content_hash VARCHAR(64) NOT NULL,
    granted_by UUID,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_network_grants PRIMARY KEY (content_hash),
    CONSTRAINT fk_network_grants_granted_by FOREIGN KEY(granted_by) REFERENCES people (id) ON DELETE SET NULL
);
CREATE TABLE saved_views (
    id UUID NOT NULL,
    person_id UUID NOT NULL,
    name VARCHAR(100) NOT NULL,
    filter TEXT NOT NULL,
    sort VARCHAR(100) NOT NULL,
    is_shared BOOLEAN DEFAULT false NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_saved_views PRIMARY KEY (id),
    CONSTRAINT fk_saved_views_person_id FOREIGN KEY(person_id) REFERENCES people (id) ON DELETE CASCADE,
    CONSTRAINT uq_saved_views_person_id_name UNIQUE (person_id, name)
);
CREATE TABLE judges (
    id UUID NOT NULL,
    name VARCHAR(100) NOT NULL,
    policy_id UUID NOT NULL,
    configuration JSONB NOT NULL,
    created_by UUID,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    deleted_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_judges PRIMARY KEY (id),
    CONSTRAINT fk_judges_created_by FOREIGN KEY(created_by) REFERENCES people (id) ON DELETE SET NULL,
    CONSTRAINT fk_judges_policy_id FOREIGN KEY(policy_id) REFERENCES policies (id) ON DELETE RESTRICT,
    CONSTRAINT uq_judges_name UNIQUE (name)
);
CREATE INDEX ix_judges_policy_id ON judges (policy_id);
CREATE TABLE judgements (
    id UUID NOT NULL,
    judge_id UUID NOT NULL,
    run_id UUID NOT NULL,
    rollout_id UUID NOT NULL,
    status VARCHAR(32) NOT NULL,
    score REAL,
    spread REAL,
    verdicts JSONB NOT NULL,
    error_message TEXT,
    tokens_in INTEGER NOT NULL,
    tokens_out INTEGER NOT NULL,
    cost DOUBLE PRECISION,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_judgements PRIMARY KEY (id),
    CONSTRAINT fk_judgements_judge_id FOREIGN KEY(judge_id) REFERENCES judges (id) ON DELETE CASCADE,
    CONSTRAINT fk_judgements_rollout_id FOREIGN KEY(rollout_id) REFERENCES rollouts (id) ON DELETE CASCADE,
    CONSTRAINT fk_judgements_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE,
    CONSTRAINT uq_judgements_judge_id_rollout_id UNIQUE (judge_id, rollout_id),
    CONSTRAINT ck_judgements_judgementstatus CHECK (status IN ('completed', 'failed'))
);
CREATE INDEX ix_judgements_rollout_id ON judgements (rollout_id);
CREATE INDEX ix_judgements_run_id_judge_id ON judgements (run_id, judge_id);
ALTER TABLE rollouts ADD COLUMN queue_seconds REAL DEFAULT 0 NOT NULL;
ALTER TABLE rollouts ADD COLUMN cost DOUBLE PRECISION;
ALTER TABLE rollouts ADD COLUMN source_id UUID;
ALTER TABLE runs ADD COLUMN source_run_id UUID;
CREATE INDEX ix_runs_source_run_id ON runs (source_run_id);
ALTER TABLE runs ADD CONSTRAINT fk_runs_source_run_id FOREIGN KEY(source_run_id) REFERENCES runs (id) ON DELETE SET NULL;

-- 9da77917eb25 -> 5c1d7c0be2a4
DROP INDEX ix_rollouts_run_id_reward;
DROP INDEX ix_rollouts_run_id_phase_training_step;
DROP INDEX ix_rollouts_run_id_seq;
CREATE UNIQUE INDEX ix_rollouts_run_id_seq ON rollouts (run_id, seq) INCLUDE (id, group_id, member, phase, training_step, level, status, stop_reason, error_kind, attempts, reward, columns, turns, tokens_in, tokens_out, is_truncated, advantage, policy_seconds, environment_seconds, queue_seconds, cost, is_demonstration);
ALTER TABLE rollouts SET (autovacuum_vacuum_insert_threshold = 5000, autovacuum_vacuum_insert_scale_factor = 0, autovacuum_analyze_scale_factor = 0.02);
DROP INDEX ix_judgements_run_id_judge_id;
CREATE INDEX ix_judgements_run_id_judge_id ON judgements (run_id, judge_id) INCLUDE (rollout_id, score);
CREATE EXTENSION IF NOT EXISTS pg_trgm;
CREATE TABLE rollout_texts (
    run_id UUID NOT NULL,
    seq BIGINT NOT NULL,
    body TEXT NOT NULL,
    CONSTRAINT pk_rollout_texts PRIMARY KEY (run_id, seq),
    CONSTRAINT fk_rollout_texts_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
CREATE INDEX ix_rollout_texts_body ON rollout_texts USING gin (body gin_trgm_ops);

-- 5c1d7c0be2a4 -> a9023ce8fca3
CREATE TABLE lesson_files (
    id UUID NOT NULL,
    name VARCHAR(200) NOT NULL,
    artifact TEXT NOT NULL,
    size_bytes BIGINT NOT NULL,
    conversations INTEGER NOT NULL,
    statistics JSONB NOT NULL,
    created_by UUID,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_lesson_files PRIMARY KEY (id),
    CONSTRAINT fk_lesson_files_created_by FOREIGN KEY(created_by) REFERENCES people (id) ON DELETE SET NULL
);
CREATE TABLE preflights (
    id UUID NOT NULL,
    version_id UUID NOT NULL,
    configuration JSONB NOT NULL,
    status VARCHAR(32) NOT NULL,
    findings JSONB NOT NULL,
    progress JSONB NOT NULL,
    reason TEXT,
    created_by UUID,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_preflights PRIMARY KEY (id),
    CONSTRAINT fk_preflights_created_by FOREIGN KEY(created_by) REFERENCES people (id) ON DELETE SET NULL,
    CONSTRAINT fk_preflights_version_id FOREIGN KEY(version_id) REFERENCES environment_versions (id) ON DELETE CASCADE,
    CONSTRAINT ck_preflights_preflightstatus CHECK (status IN ('queued', 'running', 'completed', 'failed'))
);
CREATE INDEX ix_preflights_version_id ON preflights (version_id);
CREATE TABLE alarms (
    id UUID NOT NULL,
    run_id UUID NOT NULL,
    name VARCHAR(60) NOT NULL,
    step INTEGER NOT NULL,
    sentence TEXT NOT NULL,
    evidence JSONB NOT NULL,
    action VARCHAR(32) NOT NULL,
    answer VARCHAR(32),
    answered_by UUID,
    answered_at TIMESTAMP WITH TIME ZONE,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_alarms PRIMARY KEY (id),
    CONSTRAINT fk_alarms_answered_by FOREIGN KEY(answered_by) REFERENCES people (id) ON DELETE SET NULL,
    CONSTRAINT fk_alarms_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE,
    CONSTRAINT ck_alarms_alarmaction CHECK (action IN ('note', 'lower_rate', 'pause', 'stop', 'roll_back')),
    CONSTRAINT ck_alarms_alarmanswer CHECK (answer IN ('lower_rate', 'pause', 'stop', 'roll_back', 'dismiss'))
);
CREATE INDEX ix_alarms_run_id_id ON alarms (run_id, id);
CREATE TABLE setting_changes (
    id UUID NOT NULL,
    run_id UUID NOT NULL,
    name VARCHAR(80) NOT NULL,
    before JSONB NOT NULL,
    after JSONB NOT NULL,
    alarm_id UUID,
    asked_by UUID,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    step INTEGER,
    CONSTRAINT pk_setting_changes PRIMARY KEY (id),
    CONSTRAINT fk_setting_changes_alarm_id FOREIGN KEY(alarm_id) REFERENCES alarms (id) ON DELETE SET NULL,
    CONSTRAINT fk_setting_changes_asked_by FOREIGN KEY(asked_by) REFERENCES people (id) ON DELETE SET NULL,
    CONSTRAINT fk_setting_changes_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
CREATE INDEX ix_setting_changes_run_id_id ON setting_changes (run_id, id);
ALTER TABLE checkpoints ADD COLUMN adapter JSONB;
ALTER TABLE checkpoints ADD COLUMN is_kept BOOLEAN DEFAULT false NOT NULL;
ALTER TABLE checkpoints ADD COLUMN pruned_at TIMESTAMP WITH TIME ZONE;
ALTER TABLE checkpoints ALTER COLUMN size_bytes TYPE BIGINT;
ALTER TABLE exports ADD COLUMN form VARCHAR(32) DEFAULT 'full' NOT NULL;
ALTER TABLE exports ADD CONSTRAINT ck_exports_exportform CHECK (form IN ('full', 'adapter', 'merged', 'merged_dequantised', 'gguf'));
ALTER TABLE exports ADD COLUMN options JSONB DEFAULT '{}' NOT NULL;
ALTER TABLE rollouts DROP CONSTRAINT fk_rollouts_group_id;
ALTER TABLE runs ADD COLUMN branch_step INTEGER;
ALTER TABLE jobs DROP CONSTRAINT ck_jobs_queue;
ALTER TABLE jobs ADD CONSTRAINT ck_jobs_queue CHECK (queue IN ('cpu', 'gpu', 'gpu-vllm', 'gpu-unsloth'));

-- a9023ce8fca3 -> 8236ba50bb68
CREATE TABLE detector_settings (
    id UUID NOT NULL,
    environment_id UUID,
    run_id UUID,
    detector VARCHAR(60) NOT NULL,
    enabled BOOLEAN,
    thresholds JSONB NOT NULL,
    action VARCHAR(32),
    changed_by UUID,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    changed_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_detector_settings PRIMARY KEY (id),
    CONSTRAINT ck_detector_settings_owner CHECK ((environment_id IS NULL) <> (run_id IS NULL)),
    CONSTRAINT fk_detector_settings_changed_by FOREIGN KEY(changed_by) REFERENCES people (id) ON DELETE SET NULL,
    CONSTRAINT fk_detector_settings_environment_id FOREIGN KEY(environment_id) REFERENCES environments (id) ON DELETE CASCADE,
    CONSTRAINT fk_detector_settings_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE,
    CONSTRAINT uq_detector_settings_environment_id_run_id_detector UNIQUE NULLS NOT DISTINCT (environment_id, run_id, detector),
    CONSTRAINT ck_detector_settings_action CHECK (action IN ('note', 'pause', 'screen', 'stop_and_roll_back'))
);
CREATE INDEX ix_detector_settings_run_id ON detector_settings (run_id);

-- 8236ba50bb68 -> 64584920b9d4
CREATE TABLE review_targets (
    person_id UUID NOT NULL,
    per_day INTEGER NOT NULL,
    CONSTRAINT pk_review_targets PRIMARY KEY (person_id),
    CONSTRAINT fk_review_targets_person_id FOREIGN KEY(person_id) REFERENCES people (id) ON DELETE CASCADE
);
CREATE TABLE audit_draws (
    run_id UUID NOT NULL,
    seed BIGINT NOT NULL,
    share DOUBLE PRECISION NOT NULL,
    drawn_seq BIGINT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_audit_draws PRIMARY KEY (run_id),
    CONSTRAINT fk_audit_draws_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
CREATE TABLE audit_samples (
    id UUID NOT NULL,
    run_id UUID NOT NULL,
    rollout_id UUID NOT NULL,
    lot DOUBLE PRECISION NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_audit_samples PRIMARY KEY (id),
    CONSTRAINT fk_audit_samples_rollout_id FOREIGN KEY(rollout_id) REFERENCES rollouts (id) ON DELETE CASCADE,
    CONSTRAINT fk_audit_samples_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE,
    CONSTRAINT uq_audit_samples_rollout_id UNIQUE (rollout_id)
);
CREATE INDEX ix_audit_samples_run_id ON audit_samples (run_id);
CREATE TABLE review_items (
    id UUID NOT NULL,
    run_id UUID NOT NULL,
    environment_id UUID NOT NULL,
    rollout_id UUID,
    detectors TEXT[] NOT NULL,
    cluster VARCHAR(300),
    suspicion DOUBLE PRECISION NOT NULL,
    reward_share DOUBLE PRECISION NOT NULL,
    rank DOUBLE PRECISION NOT NULL,
    verdict VARCHAR(32),
    reviewers UUID[] NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_review_items PRIMARY KEY (id),
    CONSTRAINT fk_review_items_environment_id FOREIGN KEY(environment_id) REFERENCES environments (id) ON DELETE CASCADE,
    CONSTRAINT fk_review_items_rollout_id FOREIGN KEY(rollout_id) REFERENCES rollouts (id) ON DELETE CASCADE,
    CONSTRAINT fk_review_items_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE,
    CONSTRAINT uq_review_items_rollout_id UNIQUE (rollout_id),
    CONSTRAINT ck_review_items_verdict CHECK (verdict IN ('honest', 'hack', 'broken_reward', 'unsure'))
);
CREATE INDEX ix_review_items_cluster ON review_items (environment_id, cluster);
CREATE INDEX ix_review_items_created_at_id ON review_items (created_at, id);
CREATE INDEX ix_review_items_run_id ON review_items (run_id);
CREATE INDEX ix_review_items_waiting ON review_items (rank, id) WHERE verdict IS NULL;
CREATE INDEX ix_review_items_waiting_environment ON review_items (environment_id, rank, id) WHERE verdict IS NULL;
CREATE INDEX ix_review_items_waiting_run ON review_items (run_id, rank, id) WHERE verdict IS NULL;
CREATE TABLE review_assignments (
    id UUID NOT NULL,
    item_id UUID NOT NULL,
    person_id UUID NOT NULL,
    assigned_by UUID,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_review_assignments PRIMARY KEY (id),
    CONSTRAINT fk_review_assignments_assigned_by FOREIGN KEY(assigned_by) REFERENCES people (id) ON DELETE SET NULL,
    CONSTRAINT fk_review_assignments_item_id FOREIGN KEY(item_id) REFERENCES review_items (id) ON DELETE CASCADE,
    CONSTRAINT fk_review_assignments_person_id FOREIGN KEY(person_id) REFERENCES people (id) ON DELETE CASCADE,
    CONSTRAINT uq_review_assignments_item_id_person_id UNIQUE (item_id, person_id)
);
CREATE INDEX ix_review_assignments_person_id ON review_assignments (person_id);
ALTER TABLE flags ADD COLUMN cluster VARCHAR(200);
ALTER TABLE verdicts ADD COLUMN is_blind BOOLEAN DEFAULT false NOT NULL;
ALTER TABLE verdicts ADD COLUMN is_bulk BOOLEAN DEFAULT false NOT NULL;

-- 64584920b9d4 -> c3f5a1d27b90
ALTER TABLE fixtures ADD COLUMN withdrawn_by UUID;
ALTER TABLE fixtures ADD COLUMN withdrawn_at TIMESTAMP WITH TIME ZONE;
ALTER TABLE fixtures ADD COLUMN withdrawn_because TEXT DEFAULT '' NOT NULL;
ALTER TABLE fixtures ADD CONSTRAINT fk_fixtures_withdrawn_by FOREIGN KEY(withdrawn_by) REFERENCES people (id) ON DELETE SET NULL;
CREATE INDEX ix_fixtures_rollout_id ON fixtures (rollout_id);

-- c3f5a1d27b90 -> 7d1e0c64b2f8
CREATE TABLE notices (
    id UUID NOT NULL,
    kind VARCHAR(32) NOT NULL,
    title VARCHAR(200) NOT NULL,
    text TEXT NOT NULL,
    path VARCHAR(500) NOT NULL,
    run_id UUID,
    evidence JSONB NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_notices PRIMARY KEY (id),
    CONSTRAINT fk_notices_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE SET NULL,
    CONSTRAINT ck_notices_noticekind CHECK (kind IN ('alarm', 'intervention', 'run_failed', 'certificate_expired', 'onset', 'judging', 'rescoring', 'test'))
);
CREATE INDEX ix_notices_created_at_id ON notices (created_at, id);
CREATE INDEX ix_notices_run_id ON notices (run_id);
CREATE TABLE notice_destinations (
    id UUID NOT NULL,
    name VARCHAR(100) NOT NULL,
    kind VARCHAR(32) NOT NULL,
    kinds TEXT[] NOT NULL,
    configuration JSONB NOT NULL,
    secret BYTEA,
    is_enabled BOOLEAN DEFAULT true NOT NULL,
    created_by UUID,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_notice_destinations PRIMARY KEY (id),
    CONSTRAINT fk_notice_destinations_created_by FOREIGN KEY(created_by) REFERENCES people (id) ON DELETE SET NULL,
    CONSTRAINT uq_notice_destinations_name UNIQUE (name),
    CONSTRAINT ck_notice_destinations_destinationkind CHECK (kind IN ('webhook', 'email'))
);
CREATE TABLE notice_reads (
    person_id UUID NOT NULL,
    notice_id UUID NOT NULL,
    read_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_notice_reads PRIMARY KEY (person_id, notice_id),
    CONSTRAINT fk_notice_reads_person_id FOREIGN KEY(person_id) REFERENCES people (id) ON DELETE CASCADE,
    CONSTRAINT fk_notice_reads_notice_id FOREIGN KEY(notice_id) REFERENCES notices (id) ON DELETE CASCADE
);
CREATE INDEX ix_notice_reads_notice_id ON notice_reads (notice_id);
CREATE TABLE notice_deliveries (
    id UUID NOT NULL,
    notice_id UUID NOT NULL,
    destination_id UUID NOT NULL,
    status VARCHAR(32) NOT NULL,
    attempts INTEGER NOT NULL,
    next_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    error TEXT,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    delivered_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_notice_deliveries PRIMARY KEY (id),
    CONSTRAINT fk_notice_deliveries_notice_id FOREIGN KEY(notice_id) REFERENCES notices (id) ON DELETE CASCADE,
    CONSTRAINT fk_notice_deliveries_destination_id FOREIGN KEY(destination_id) REFERENCES notice_destinations (id) ON DELETE CASCADE,
    CONSTRAINT uq_notice_deliveries_notice_id_destination_id UNIQUE (notice_id, destination_id),
    CONSTRAINT ck_notice_deliveries_deliverystatus CHECK (status IN ('waiting', 'delivered', 'failed'))
);
CREATE INDEX ix_notice_deliveries_created_at_id ON notice_deliveries (created_at, id);
CREATE INDEX ix_notice_deliveries_destination_id ON notice_deliveries (destination_id);
CREATE INDEX ix_notice_deliveries_due ON notice_deliveries (next_at) WHERE status = 'waiting';

-- 7d1e0c64b2f8 -> 2f6b9c4e8d13
CREATE TABLE onset_searches (
    id UUID NOT NULL,
    run_id UUID NOT NULL,
    version_id UUID NOT NULL,
    detector VARCHAR(60) NOT NULL,
    cluster VARCHAR(200),
    status VARCHAR(32) NOT NULL,
    tasks INTEGER NOT NULL,
    group_size INTEGER NOT NULL,
    temperature DOUBLE PRECISION NOT NULL,
    seed BIGINT NOT NULL,
    last_step INTEGER NOT NULL,
    hint_step INTEGER,
    outcome VARCHAR(32),
    honest_id UUID,
    hacking_id UUID,
    honest_step INTEGER,
    hacking_step INTEGER,
    is_monotone BOOLEAN,
    remarks TEXT[] NOT NULL,
    reason TEXT,
    asked_by UUID,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_onset_searches PRIMARY KEY (id),
    CONSTRAINT fk_onset_searches_asked_by FOREIGN KEY(asked_by) REFERENCES people (id) ON DELETE SET NULL,
    CONSTRAINT fk_onset_searches_hacking_id FOREIGN KEY(hacking_id) REFERENCES checkpoints (id) ON DELETE SET NULL,
    CONSTRAINT fk_onset_searches_honest_id FOREIGN KEY(honest_id) REFERENCES checkpoints (id) ON DELETE SET NULL,
    CONSTRAINT fk_onset_searches_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE,
    CONSTRAINT fk_onset_searches_version_id FOREIGN KEY(version_id) REFERENCES environment_versions (id) ON DELETE RESTRICT,
    CONSTRAINT ck_onset_searches_runstatus CHECK (status IN ('queued', 'running', 'paused', 'stopped', 'completed', 'failed')),
    CONSTRAINT ck_onset_searches_outcome CHECK (outcome IN ('found', 'at_the_first', 'not_seen'))
);
CREATE INDEX ix_onset_searches_run_id_id ON onset_searches (run_id, id);
CREATE TABLE onset_samples (
    id UUID NOT NULL,
    search_id UUID NOT NULL,
    checkpoint_id UUID,
    run_id UUID,
    is_base BOOLEAN NOT NULL,
    step INTEGER NOT NULL,
    rollouts INTEGER,
    flagged INTEGER,
    chance DOUBLE PRECISION,
    is_above BOOLEAN,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_onset_samples PRIMARY KEY (id),
    CONSTRAINT fk_onset_samples_checkpoint_id FOREIGN KEY(checkpoint_id) REFERENCES checkpoints (id) ON DELETE SET NULL,
    CONSTRAINT fk_onset_samples_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE SET NULL,
    CONSTRAINT fk_onset_samples_search_id FOREIGN KEY(search_id) REFERENCES onset_searches (id) ON DELETE CASCADE,
    CONSTRAINT uq_onset_samples_search_id_checkpoint_id UNIQUE (search_id, checkpoint_id)
);
CREATE INDEX ix_onset_samples_run_id ON onset_samples (run_id);

-- 2f6b9c4e8d13 -> b62f9d40c1e5
ALTER TABLE rollouts DROP CONSTRAINT ck_rollouts_phase;
ALTER TABLE rollouts ADD CONSTRAINT ck_rollouts_phase CHECK (phase IN ('evaluation', 'check', 'play', 'warm_up', 'train', 'heldout', 'canary'));
ALTER TABLE groups DROP CONSTRAINT ck_groups_phase;
ALTER TABLE groups ADD CONSTRAINT ck_groups_phase CHECK (phase IN ('evaluation', 'check', 'play', 'warm_up', 'train', 'heldout', 'canary'));

-- b62f9d40c1e5 -> 5b2f7a90e1c4
CREATE TABLE interventions (
    id UUID NOT NULL,
    run_id UUID NOT NULL,
    step INTEGER NOT NULL,
    detector VARCHAR(60) NOT NULL,
    action VARCHAR(32) NOT NULL,
    rollouts INTEGER NOT NULL,
    sentence TEXT NOT NULL,
    alarm_id UUID,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_interventions PRIMARY KEY (id),
    CONSTRAINT fk_interventions_alarm_id FOREIGN KEY(alarm_id) REFERENCES alarms (id) ON DELETE SET NULL,
    CONSTRAINT fk_interventions_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE,
    CONSTRAINT uq_interventions_run_id_step_detector UNIQUE (run_id, step, detector),
    CONSTRAINT ck_interventions_action CHECK (action IN ('note', 'pause', 'screen', 'stop_and_roll_back'))
);

-- 5b2f7a90e1c4 -> 91c4e7d0ab36
CREATE TABLE questions (
    id UUID NOT NULL,
    name VARCHAR(100) NOT NULL,
    kind VARCHAR(32) NOT NULL,
    policy_id UUID NOT NULL,
    configuration JSONB NOT NULL,
    created_by UUID,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    deleted_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_questions PRIMARY KEY (id),
    CONSTRAINT fk_questions_policy_id FOREIGN KEY(policy_id) REFERENCES policies (id) ON DELETE RESTRICT,
    CONSTRAINT fk_questions_created_by FOREIGN KEY(created_by) REFERENCES people (id) ON DELETE SET NULL,
    CONSTRAINT uq_questions_name UNIQUE (name),
    CONSTRAINT ck_questions_questionkind CHECK (kind IN ('question', 'reasoning_monitor', 'contrastive_judge'))
);
CREATE INDEX ix_questions_policy_id ON questions (policy_id);
CREATE TABLE askings (
    id UUID NOT NULL,
    question_id UUID NOT NULL,
    run_id UUID NOT NULL,
    job_id UUID,
    "where" TEXT NOT NULL,
    cluster VARCHAR(300),
    status VARCHAR(32) NOT NULL,
    reason TEXT,
    total INTEGER,
    stop_requested BOOLEAN DEFAULT false NOT NULL,
    canaries JSONB,
    findings JSONB NOT NULL,
    tokens_in INTEGER NOT NULL,
    tokens_out INTEGER NOT NULL,
    cost DOUBLE PRECISION,
    created_by UUID,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE,
    ended_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_askings PRIMARY KEY (id),
    CONSTRAINT fk_askings_question_id FOREIGN KEY(question_id) REFERENCES questions (id) ON DELETE CASCADE,
    CONSTRAINT fk_askings_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE,
    CONSTRAINT fk_askings_created_by FOREIGN KEY(created_by) REFERENCES people (id) ON DELETE SET NULL,
    CONSTRAINT uq_askings_question_id_run_id UNIQUE (question_id, run_id),
    CONSTRAINT ck_askings_runstatus CHECK (status IN ('queued', 'running', 'paused', 'stopped', 'completed', 'failed'))
);
CREATE INDEX ix_askings_run_id ON askings (run_id);
CREATE TABLE question_answers (
    id UUID NOT NULL,
    question_id UUID NOT NULL,
    run_id UUID NOT NULL,
    rollout_id UUID NOT NULL,
    status VARCHAR(32) NOT NULL,
    answer VARCHAR(60),
    value REAL,
    confidence REAL,
    reason TEXT NOT NULL,
    citations JSONB NOT NULL,
    dropped INTEGER NOT NULL,
    error_message TEXT,
    raw TEXT,
    tokens_in INTEGER NOT NULL,
    tokens_out INTEGER NOT NULL,
    cost DOUBLE PRECISION,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_question_answers PRIMARY KEY (id),
    CONSTRAINT fk_question_answers_question_id FOREIGN KEY(question_id) REFERENCES questions (id) ON DELETE CASCADE,
    CONSTRAINT fk_question_answers_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE,
    CONSTRAINT fk_question_answers_rollout_id FOREIGN KEY(rollout_id) REFERENCES rollouts (id) ON DELETE CASCADE,
    CONSTRAINT uq_question_answers_question_id_rollout_id UNIQUE (question_id, rollout_id),
    CONSTRAINT ck_question_answers_judgementstatus CHECK (status IN ('completed', 'failed'))
);
CREATE INDEX ix_question_answers_rollout_id ON question_answers (rollout_id);
CREATE INDEX ix_question_answers_run_id_question_id ON question_answers (run_id, question_id) INCLUDE (rollout_id, answer, value);

-- 91c4e7d0ab36 -> c3a8e51f7d20
CREATE TABLE effort_scores (
    id UUID NOT NULL,
    run_id UUID NOT NULL,
    version_id UUID NOT NULL,
    status VARCHAR(32) NOT NULL,
    plan JSONB NOT NULL,
    cuts INTEGER NOT NULL,
    samples INTEGER NOT NULL,
    replies INTEGER NOT NULL,
    measure VARCHAR(32) NOT NULL,
    outcome VARCHAR(32),
    sentence TEXT NOT NULL,
    difference DOUBLE PRECISION,
    low DOUBLE PRECISION,
    high DOUBLE PRECISION,
    tasks INTEGER,
    base_limit DOUBLE PRECISION,
    reason TEXT,
    asked_by UUID,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_effort_scores PRIMARY KEY (id),
    CONSTRAINT fk_effort_scores_asked_by FOREIGN KEY(asked_by) REFERENCES people (id) ON DELETE SET NULL,
    CONSTRAINT fk_effort_scores_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE,
    CONSTRAINT fk_effort_scores_version_id FOREIGN KEY(version_id) REFERENCES environment_versions (id) ON DELETE RESTRICT,
    CONSTRAINT ck_effort_scores_runstatus CHECK (status IN ('queued', 'running', 'paused', 'stopped', 'completed', 'failed')),
    CONSTRAINT ck_effort_scores_effortmeasure CHECK (measure IN ('success', 'reward')),
    CONSTRAINT ck_effort_scores_effortoutcome CHECK (outcome IN ('suspicious', 'unremarkable', 'unknown'))
);
CREATE INDEX ix_effort_scores_run_id_id ON effort_scores (run_id, id);
CREATE TABLE effort_sides (
    id UUID NOT NULL,
    score_id UUID NOT NULL,
    checkpoint_id UUID,
    run_id UUID,
    is_base BOOLEAN NOT NULL,
    stage VARCHAR(16) NOT NULL,
    step INTEGER NOT NULL,
    played INTEGER,
    succeeded INTEGER,
    reasoned INTEGER,
    chosen INTEGER,
    is_done BOOLEAN NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_effort_sides PRIMARY KEY (id),
    CONSTRAINT fk_effort_sides_checkpoint_id FOREIGN KEY(checkpoint_id) REFERENCES checkpoints (id) ON DELETE SET NULL,
    CONSTRAINT fk_effort_sides_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE SET NULL,
    CONSTRAINT fk_effort_sides_score_id FOREIGN KEY(score_id) REFERENCES effort_scores (id) ON DELETE CASCADE,
    CONSTRAINT uq_effort_sides_score_id_is_base UNIQUE (score_id, is_base)
);
CREATE INDEX ix_effort_sides_run_id ON effort_sides (run_id);
CREATE TABLE effort_replies (
    id UUID NOT NULL,
    side_id UUID NOT NULL,
    rollout_id UUID NOT NULL,
    task VARCHAR(80) NOT NULL,
    characters INTEGER NOT NULL,
    values DOUBLE PRECISION[] NOT NULL,
    score DOUBLE PRECISION NOT NULL,
    CONSTRAINT pk_effort_replies PRIMARY KEY (id),
    CONSTRAINT fk_effort_replies_side_id FOREIGN KEY(side_id) REFERENCES effort_sides (id) ON DELETE CASCADE,
    CONSTRAINT uq_effort_replies_side_id_rollout_id UNIQUE (side_id, rollout_id)
);

-- c3a8e51f7d20 -> e40b7d92a6c8
ALTER TABLE verdicts ADD COLUMN taken_back_at TIMESTAMP WITH TIME ZONE;
UPDATE verdicts given SET taken_back_at = undone.created_at
        FROM verdicts undone
        WHERE undone.is_bulk AND undone.verdict = 'unsure'
          AND given.is_bulk AND given.rollout_id = undone.rollout_id
          AND (given.created_at, given.id) <= (undone.created_at, undone.id);

-- e40b7d92a6c8 -> 5b7d20c94e1f
ALTER TABLE alarms DROP CONSTRAINT ck_alarms_alarmanswer;
ALTER TABLE alarms ADD CONSTRAINT ck_alarms_alarmanswer CHECK (answer IN ('lower_rate', 'pause', 'stop', 'roll_back', 'save_memory', 'dismiss'));

-- 5b7d20c94e1f -> 5b1f0c7e92d4
DELETE FROM detector_settings WHERE run_id IS NOT NULL;
ALTER TABLE detector_settings DROP CONSTRAINT ck_detector_settings_owner;
ALTER TABLE detector_settings DROP CONSTRAINT uq_detector_settings_environment_id_run_id_detector;
ALTER TABLE detector_settings DROP COLUMN run_id;
ALTER TABLE detector_settings ALTER COLUMN environment_id SET NOT NULL;
ALTER TABLE detector_settings ADD CONSTRAINT uq_detector_settings_environment_id_detector UNIQUE (environment_id, detector);

-- 5b1f0c7e92d4 -> 8c41d7e5a960
ALTER TABLE web_sessions ADD COLUMN device VARCHAR(60) DEFAULT '' NOT NULL;
ALTER TABLE web_sessions ADD COLUMN address VARCHAR(64) DEFAULT '' NOT NULL;
ALTER TABLE api_tokens ADD COLUMN is_read_only BOOLEAN DEFAULT false NOT NULL;
ALTER TABLE api_tokens ADD COLUMN is_local BOOLEAN DEFAULT false NOT NULL;
ALTER TABLE api_tokens ADD COLUMN parent_id UUID;
ALTER TABLE api_tokens ADD COLUMN session_id UUID;
ALTER TABLE api_tokens ADD CONSTRAINT fk_api_tokens_parent_id FOREIGN KEY(parent_id) REFERENCES api_tokens (id) ON DELETE CASCADE;
CREATE INDEX ix_api_tokens_parent_id ON api_tokens (parent_id);
ALTER TABLE api_tokens ADD CONSTRAINT fk_api_tokens_session_id FOREIGN KEY(session_id) REFERENCES web_sessions (id) ON DELETE SET NULL;
CREATE INDEX ix_api_tokens_session_id ON api_tokens (session_id);
UPDATE api_tokens SET is_local = true WHERE expires_at IS NULL AND name = 'command line of this machine';
CREATE TABLE attempt_limits (
    key BYTEA NOT NULL,
    count INTEGER NOT NULL,
    resets_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_attempt_limits PRIMARY KEY (key)
);
CREATE INDEX ix_attempt_limits_resets_at ON attempt_limits (resets_at);
DROP TABLE sign_in_attempts;

-- 8c41d7e5a960 -> initial_0_2
-- Judges and questions become graders. A question whose name a judge has gets the end of its id behind its name.
CREATE TABLE graders (
    id UUID NOT NULL,
    name VARCHAR(100) NOT NULL,
    kind VARCHAR(32) NOT NULL,
    policy_id UUID NOT NULL,
    settings JSONB NOT NULL,
    created_by UUID,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    deleted_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_graders PRIMARY KEY (id),
    CONSTRAINT uq_graders_name UNIQUE (name),
    CONSTRAINT ck_graders_graderkind CHECK (kind IN ('judge', 'question', 'monitor', 'contrast')),
    CONSTRAINT fk_graders_policy_id FOREIGN KEY(policy_id) REFERENCES policies (id) ON DELETE RESTRICT,
    CONSTRAINT fk_graders_created_by FOREIGN KEY(created_by) REFERENCES people (id) ON DELETE SET NULL
);
CREATE INDEX ix_graders_policy_id ON graders (policy_id);
CREATE TABLE grader_runs (
    id UUID NOT NULL,
    grader_id UUID NOT NULL,
    run_id UUID NOT NULL,
    job_id UUID,
    "where" TEXT NOT NULL,
    cluster VARCHAR(300),
    status VARCHAR(32) NOT NULL,
    reason TEXT,
    total INTEGER,
    stop_requested BOOLEAN DEFAULT false NOT NULL,
    canaries JSONB,
    findings JSONB NOT NULL,
    tokens_in INTEGER NOT NULL,
    tokens_out INTEGER NOT NULL,
    cost DOUBLE PRECISION,
    created_by UUID,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE,
    ended_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_grader_runs PRIMARY KEY (id),
    CONSTRAINT uq_grader_runs_grader_id_run_id UNIQUE (grader_id, run_id),
    CONSTRAINT fk_grader_runs_grader_id FOREIGN KEY(grader_id) REFERENCES graders (id) ON DELETE CASCADE,
    CONSTRAINT fk_grader_runs_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE,
    CONSTRAINT ck_grader_runs_runstatus CHECK (status IN ('queued', 'running', 'paused', 'stopped', 'completed', 'failed')),
    CONSTRAINT fk_grader_runs_created_by FOREIGN KEY(created_by) REFERENCES people (id) ON DELETE SET NULL
);
CREATE INDEX ix_grader_runs_run_id ON grader_runs (run_id);
CREATE TABLE grades (
    id UUID NOT NULL,
    grader_id UUID NOT NULL,
    run_id UUID NOT NULL,
    rollout_id UUID NOT NULL,
    status VARCHAR(32) NOT NULL,
    score REAL,
    spread REAL,
    verdicts JSONB NOT NULL,
    answer VARCHAR(60),
    confidence REAL,
    reason TEXT NOT NULL,
    citations JSONB NOT NULL,
    dropped INTEGER NOT NULL,
    error_message TEXT,
    raw TEXT,
    tokens_in INTEGER NOT NULL,
    tokens_out INTEGER NOT NULL,
    cost DOUBLE PRECISION,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_grades PRIMARY KEY (id),
    CONSTRAINT uq_grades_grader_id_rollout_id UNIQUE (grader_id, rollout_id),
    CONSTRAINT fk_grades_grader_id FOREIGN KEY(grader_id) REFERENCES graders (id) ON DELETE CASCADE,
    CONSTRAINT fk_grades_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE,
    CONSTRAINT fk_grades_rollout_id FOREIGN KEY(rollout_id) REFERENCES rollouts (id) ON DELETE CASCADE,
    CONSTRAINT ck_grades_gradestatus CHECK (status IN ('completed', 'failed'))
);
CREATE INDEX ix_grades_rollout_id ON grades (rollout_id);
CREATE INDEX ix_grades_run_id_grader_id ON grades (run_id, grader_id) INCLUDE (rollout_id, score, answer);
INSERT INTO graders (id, name, kind, policy_id, settings, created_by, created_at, deleted_at)
SELECT id, name, 'judge', policy_id, configuration || '{"kind": "judge"}', created_by, created_at, deleted_at FROM judges;
UPDATE flags SET detector = detector || '_' || right(questions.id::text, 6),
        evidence = jsonb_set(evidence, '{answered_by}', to_jsonb(left(questions.name, 33) || '_' || right(questions.id::text, 6)))
    FROM questions JOIN judges ON judges.name = questions.name
    WHERE questions.kind = 'question' AND flags.detector = 'question:' || questions.name;
UPDATE questions SET name = left(questions.name, 33) || '_' || right(questions.id::text, 6)
    FROM judges WHERE judges.name = questions.name;
INSERT INTO graders (id, name, kind, policy_id, settings, created_by, created_at, deleted_at)
SELECT id, name, graders_kind, policy_id, configuration || jsonb_build_object('kind', graders_kind), created_by, created_at, deleted_at
    FROM questions, LATERAL (SELECT CASE kind WHEN 'reasoning_monitor' THEN 'monitor' WHEN 'contrastive_judge' THEN 'contrast' ELSE kind END) AS renamed (graders_kind);
INSERT INTO grader_runs (id, grader_id, run_id, job_id, "where", status, reason, total, stop_requested, canaries, findings, tokens_in, tokens_out, cost, started_at, ended_at)
SELECT gen_random_uuid(), graders.id, runs.id, nullif(record ->> 'job_id', '')::uuid, coalesce(record ->> 'where', ''), coalesce(record ->> 'status', 'stopped'),
        record ->> 'reason', (record ->> 'total')::integer, false, nullif(record -> 'canaries', 'null'), '[]',
        coalesce((record ->> 'tokens_in')::integer, 0), coalesce((record ->> 'tokens_out')::integer, 0), (record ->> 'cost')::double precision,
        (record ->> 'started_at')::timestamptz, (record ->> 'ended_at')::timestamptz
    FROM runs, LATERAL jsonb_each(runs.summary -> 'judges') AS records (judge_id, record) JOIN graders ON graders.id::text = judge_id
    WHERE jsonb_typeof(runs.summary -> 'judges') = 'object';
UPDATE runs SET summary = summary - 'judges' WHERE summary ? 'judges';
INSERT INTO grader_runs (id, grader_id, run_id, job_id, "where", cluster, status, reason, total, stop_requested, canaries, findings, tokens_in, tokens_out, cost, created_by, created_at, started_at, ended_at)
SELECT id, question_id, run_id, job_id, "where", cluster, status, reason, total, stop_requested, canaries, findings, tokens_in, tokens_out, cost, created_by, created_at, started_at, ended_at
    FROM askings;
INSERT INTO grades (id, grader_id, run_id, rollout_id, status, score, spread, verdicts, reason, citations, dropped, error_message, tokens_in, tokens_out, cost, created_at)
SELECT id, judge_id, run_id, rollout_id, status, score, spread, verdicts, '', '[]', 0, error_message, tokens_in, tokens_out, cost, created_at
    FROM judgements;
INSERT INTO grades (id, grader_id, run_id, rollout_id, status, score, verdicts, answer, confidence, reason, citations, dropped, error_message, raw, tokens_in, tokens_out, cost, created_at)
SELECT id, question_id, run_id, rollout_id, status, value, '[]', answer, confidence, reason, citations, dropped, error_message, raw, tokens_in, tokens_out, cost, created_at
    FROM question_answers;
UPDATE grader_runs SET status = 'paused', reason = 'Interrupted by the update to Proctor 0.2. Continue it.' WHERE status IN ('queued', 'running');
UPDATE jobs SET status = 'failed', error = 'Interrupted by the update to Proctor 0.2.'
    WHERE name IN ('judging.judge', 'judging.ask', 'judging.question', 'judging.try_question') AND status IN ('queued', 'leased');
UPDATE notices SET evidence = evidence - 'question' || jsonb_build_object('grader', evidence -> 'question') WHERE evidence ? 'question';
DROP TABLE judgements, question_answers, askings, judges, questions;
ALTER TABLE rollouts ADD COLUMN tokens_cached INTEGER DEFAULT 0 NOT NULL;
-- one study with a kind: onset searches and effort scores
CREATE TABLE studies (
    id UUID NOT NULL,
    kind VARCHAR(32) NOT NULL,
    run_id UUID NOT NULL,
    version_id UUID NOT NULL,
    status VARCHAR(32) NOT NULL,
    reason TEXT,
    settings JSONB NOT NULL,
    result JSONB,
    created_by UUID,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_studies PRIMARY KEY (id),
    CONSTRAINT fk_studies_created_by FOREIGN KEY(created_by) REFERENCES people (id) ON DELETE SET NULL,
    CONSTRAINT fk_studies_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE,
    CONSTRAINT fk_studies_version_id FOREIGN KEY(version_id) REFERENCES environment_versions (id) ON DELETE RESTRICT,
    CONSTRAINT ck_studies_studykind CHECK (kind IN ('onset', 'effort')),
    CONSTRAINT ck_studies_runstatus CHECK (status IN ('queued', 'running', 'paused', 'stopped', 'completed', 'failed'))
);
CREATE INDEX ix_studies_run_id_id ON studies (run_id, id);
CREATE TABLE study_checkpoints (
    id UUID NOT NULL,
    study_id UUID NOT NULL,
    checkpoint_id UUID,
    run_id UUID,
    is_base BOOLEAN NOT NULL,
    stage VARCHAR(16) NOT NULL,
    step INTEGER NOT NULL,
    rollouts INTEGER,
    flagged INTEGER,
    chance DOUBLE PRECISION,
    is_above BOOLEAN,
    succeeded INTEGER,
    reasoned INTEGER,
    chosen INTEGER,
    is_done BOOLEAN NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_study_checkpoints PRIMARY KEY (id),
    CONSTRAINT fk_study_checkpoints_checkpoint_id FOREIGN KEY(checkpoint_id) REFERENCES checkpoints (id) ON DELETE SET NULL,
    CONSTRAINT fk_study_checkpoints_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE SET NULL,
    CONSTRAINT fk_study_checkpoints_study_id FOREIGN KEY(study_id) REFERENCES studies (id) ON DELETE CASCADE,
    CONSTRAINT uq_study_checkpoints_study_id_checkpoint_id UNIQUE (study_id, checkpoint_id)
);
CREATE INDEX ix_study_checkpoints_run_id ON study_checkpoints (run_id);
INSERT INTO studies (id, kind, run_id, version_id, status, reason, settings, result, created_by, created_at, ended_at)
SELECT id, 'onset', run_id, version_id, status, reason,
        jsonb_build_object('detector', detector, 'cluster', cluster, 'tasks', tasks, 'group_size', group_size, 'temperature', temperature,
            'seed', seed, 'last_step', last_step, 'hint_step', hint_step),
        CASE WHEN outcome IS NOT NULL THEN jsonb_build_object('outcome', outcome, 'honest_id', honest_id, 'hacking_id', hacking_id,
            'honest_step', honest_step, 'hacking_step', hacking_step, 'is_monotone', coalesce(is_monotone, true), 'remarks', to_jsonb(remarks)) END,
        asked_by, created_at, ended_at
    FROM onset_searches;
INSERT INTO studies (id, kind, run_id, version_id, status, reason, settings, result, created_by, created_at, ended_at)
SELECT id, 'effort', run_id, version_id, status, reason,
        jsonb_build_object('plan', plan, 'cuts', cuts, 'samples', samples, 'replies', replies, 'measure', measure),
        CASE WHEN outcome IS NOT NULL THEN jsonb_build_object('outcome', outcome, 'sentence', sentence, 'difference', difference,
            'low', low, 'high', high, 'tasks', tasks, 'base_limit', base_limit) END,
        asked_by, created_at, ended_at
    FROM effort_scores;
INSERT INTO study_checkpoints (id, study_id, checkpoint_id, run_id, is_base, stage, step, rollouts, flagged, chance, is_above, is_done, created_at)
SELECT samples.id, search_id, checkpoint_id, samples.run_id, is_base, coalesce(checkpoints.stage, CASE WHEN is_base THEN 'sft' ELSE 'grpo' END),
        coalesce(checkpoints.step, samples.step), rollouts, flagged, chance, is_above, false, samples.created_at
    FROM onset_samples AS samples LEFT JOIN checkpoints ON checkpoints.id = checkpoint_id;
INSERT INTO study_checkpoints (id, study_id, checkpoint_id, run_id, is_base, stage, step, rollouts, succeeded, reasoned, chosen, is_done, created_at)
SELECT id, score_id, checkpoint_id, run_id, is_base, stage, step, played, succeeded, reasoned, chosen, is_done, created_at FROM effort_sides;
ALTER TABLE effort_replies RENAME COLUMN side_id TO study_checkpoint_id;
ALTER TABLE effort_replies RENAME CONSTRAINT uq_effort_replies_side_id_rollout_id TO uq_effort_replies_study_checkpoint_id_rollout_id;
ALTER TABLE effort_replies DROP CONSTRAINT fk_effort_replies_side_id;
ALTER TABLE effort_replies ADD CONSTRAINT fk_effort_replies_study_checkpoint_id
    FOREIGN KEY (study_checkpoint_id) REFERENCES study_checkpoints (id) ON DELETE CASCADE;
UPDATE studies SET status = 'stopped', reason = 'Interrupted by the update to Proctor 0.2. Resume it.', ended_at = now() WHERE status IN ('queued', 'running');
UPDATE jobs SET status = 'failed', error = 'Interrupted by the update to Proctor 0.2.'
    WHERE name IN ('judging.onset', 'judging.effort') AND status IN ('queued', 'leased');
UPDATE notices SET path = replace(path, '/onset', '/studies'), evidence = evidence - 'search' || jsonb_build_object('study', evidence -> 'search')
    WHERE evidence ? 'search';
DROP TABLE onset_samples, onset_searches, effort_sides, effort_scores;
