-- +goose Up
-- Seconds to a run's first output; 0: the backend's own.
ALTER TABLE work_units ADD COLUMN startup_timeout double precision NOT NULL DEFAULT 0 CHECK (startup_timeout >= 0);
