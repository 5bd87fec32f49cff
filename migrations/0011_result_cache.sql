-- +goose Up
-- How old a result may be, in seconds, for the unit to take it over instead of
-- running; null: it did not ask. A unit that works in a directory of the
-- caller's changes what is in it, which a result taken over would not.
ALTER TABLE work_units ADD COLUMN cache_ttl double precision CHECK (cache_ttl > 0);
ALTER TABLE work_units ADD CONSTRAINT cache_without_directory CHECK (cache_ttl IS NULL OR working_directory = '');
-- What came of it. The run that the result was taken from may be gone by now.
ALTER TABLE work_units ADD COLUMN cache text CHECK (cache IN ('hit', 'miss'));
ALTER TABLE work_units ADD COLUMN cached_from uuid;
ALTER TABLE work_units ADD CONSTRAINT from_when_hit CHECK ((cached_from IS NOT NULL) = (cache IS NOT DISTINCT FROM 'hit'));

-- Results that may be taken over: the newest succeeded run for each key, which
-- is a digest of all that shapes an answer.
CREATE TABLE result_cache (
    tenant     text        NOT NULL,
    key        bytea       NOT NULL CHECK (length(key) = 32),
    run_id     uuid        NOT NULL REFERENCES worker_runs ON DELETE CASCADE,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, key)
);
CREATE INDEX result_cache_by_run ON result_cache (run_id);
CREATE INDEX result_cache_oldest ON result_cache (created_at);
