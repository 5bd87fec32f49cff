-- +goose Up
-- What the run after one that was cut off does with that one's session.
ALTER TABLE work_units ADD COLUMN session_policy text NOT NULL DEFAULT 'resume'
    CHECK (session_policy IN ('resume', 'fresh'));
