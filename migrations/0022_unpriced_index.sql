-- +goose NO TRANSACTION
-- +goose Up
-- The units of a batch whose cost is not known, which is asked at each look at a
-- batch with a budget; and the batch that a unit sums up.
DROP INDEX IF EXISTS work_units_unpriced;
CREATE INDEX CONCURRENTLY work_units_unpriced ON work_units (batch_id) WHERE batch_id IS NOT NULL AND unpriced_runs > 0;
DROP INDEX IF EXISTS batches_synthesis;
CREATE INDEX CONCURRENTLY batches_synthesis ON batches (synthesis_unit) WHERE synthesis_unit IS NOT NULL;
