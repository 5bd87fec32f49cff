-- +goose NO TRANSACTION
-- +goose Up
-- Lists of runs are read by the primary key, as those of units are.
DROP INDEX CONCURRENTLY IF EXISTS worker_runs_newest;
