-- +goose NO TRANSACTION
-- +goose Up
INSERT INTO unit_search (unit_id, tenant, backend, created_at, title, labels)
SELECT id, tenant, backend, created_at, title, labels FROM work_units ON CONFLICT DO NOTHING;
-- A unit that was deleted between the reading of its row and the commit.
DELETE FROM unit_search s WHERE NOT EXISTS (SELECT FROM work_units u WHERE u.id = s.unit_id);
CREATE INDEX CONCURRENTLY IF NOT EXISTS unit_search_title ON unit_search USING gin (title gin_trgm_ops);
CREATE INDEX CONCURRENTLY IF NOT EXISTS unit_search_labels ON unit_search USING gin (labels jsonb_path_ops) WHERE labels <> '{}';
DROP INDEX CONCURRENTLY IF EXISTS work_units_search;
DROP INDEX CONCURRENTLY IF EXISTS work_units_labelled;
CREATE INDEX CONCURRENTLY IF NOT EXISTS unit_search_backend ON unit_search (tenant, backend, unit_id DESC);
CREATE INDEX CONCURRENTLY IF NOT EXISTS unit_search_created ON unit_search (tenant, created_at);
DROP INDEX CONCURRENTLY IF EXISTS work_units_by_backend;
DROP INDEX CONCURRENTLY IF EXISTS work_units_created;
-- The primary key lists units as well.
DROP INDEX CONCURRENTLY IF EXISTS work_units_newest;
-- For a walk over what is due, which goes on behind the last unit that it has seen.
CREATE INDEX CONCURRENTLY IF NOT EXISTS work_units_due ON work_units (check_at, id) WHERE state = 'queued';
DROP INDEX CONCURRENTLY IF EXISTS work_units_unchecked;
