-- +goose NO TRANSACTION
-- +goose Up
ALTER TABLE files VALIDATE CONSTRAINT files_run_id_fkey;
-- An index whose build broke off is there, and not valid: each is made anew.
DROP INDEX CONCURRENTLY IF EXISTS transcripts_kept;
CREATE INDEX CONCURRENTLY transcripts_kept ON transcripts (run_id) WHERE removed_at IS NULL;
DROP INDEX CONCURRENTLY IF EXISTS work_units_keyed;
CREATE INDEX CONCURRENTLY work_units_keyed ON work_units (created_at) WHERE idempotency_key IS NOT NULL;
DROP INDEX CONCURRENTLY IF EXISTS files_uploaded;
CREATE INDEX CONCURRENTLY files_uploaded ON files (created_at) WHERE run_id IS NULL;
DROP INDEX CONCURRENTLY IF EXISTS batches_synthesis;
CREATE INDEX CONCURRENTLY batches_synthesis ON batches (synthesis_unit) WHERE synthesis_unit IS NOT NULL;
