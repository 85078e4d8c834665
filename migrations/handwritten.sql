-- Database objects that the models cannot declare. `scripts/migrations.py` writes them into the initial revision and
-- adds them to the models' tables when it checks for drift. Statements are separated by blank lines.

-- The rollout text index (filters such as `transcript contains "…"`) uses its operators.
CREATE EXTENSION IF NOT EXISTS pg_trgm;

CREATE FUNCTION refuse_changed_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF to_jsonb(NEW) - 'published_by' IS DISTINCT FROM to_jsonb(OLD) - 'published_by' THEN
        RAISE EXCEPTION 'a published environment version never changes';
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER environment_versions_never_change BEFORE UPDATE ON environment_versions
FOR EACH ROW EXECUTE FUNCTION refuse_changed_version();

-- Lists of rollouts read only the index, which Postgres allows for pages that were vacuumed: vacuum new pages soon.
ALTER TABLE rollouts SET (
    autovacuum_vacuum_insert_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_analyze_scale_factor = 0.02
);
