-- +goose NO TRANSACTION
-- +goose Up
-- Statistics are mostly taken while nothing waits, and promise that these two indexes have one row. Who looks for a
-- queued unit by its id then read all of one instead of the primary key. Now they fit only who also names check_at, or queue.
CREATE INDEX CONCURRENTLY IF NOT EXISTS work_units_to_check ON work_units (check_at, id) WHERE state = 'queued' AND check_at IS NOT NULL;
DROP INDEX CONCURRENTLY IF EXISTS work_units_due;
CREATE INDEX CONCURRENTLY IF NOT EXISTS work_units_in_lane ON work_units (queue, backend, priority DESC, id) WHERE state = 'queued' AND NOT held AND queue IS NOT NULL;
DROP INDEX CONCURRENTLY IF EXISTS work_units_lane;
-- Lists of runs are read by the primary key, as those of units are.
DROP INDEX CONCURRENTLY IF EXISTS worker_runs_newest;
