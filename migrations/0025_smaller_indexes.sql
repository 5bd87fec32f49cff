-- +goose NO TRANSACTION
-- +goose Up
-- Each change of a unit's state writes to all its indexes, also for the many units without labels; and nearly all
-- runs succeed, so to look for these takes no index of its own. (Those that go on have worker_runs_one_live.)
DROP INDEX CONCURRENTLY IF EXISTS work_units_labelled;
CREATE INDEX CONCURRENTLY work_units_labelled ON work_units USING gin (labels jsonb_path_ops) WHERE labels <> '{}';
DROP INDEX CONCURRENTLY IF EXISTS work_units_by_label;
DROP INDEX CONCURRENTLY IF EXISTS worker_runs_unsuccessful;
CREATE INDEX CONCURRENTLY worker_runs_unsuccessful ON worker_runs (tenant, status, id DESC) WHERE status NOT IN ('running', 'succeeded');
DROP INDEX CONCURRENTLY IF EXISTS worker_runs_by_status;
