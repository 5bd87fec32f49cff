-- +goose Up
-- Runs in a row whose worker process died. Who has seen two runs alone next:
-- it may be what kills them.
ALTER TABLE work_units ADD COLUMN deaths integer NOT NULL DEFAULT 0;
