-- +goose Up
ALTER TABLE work_units ADD COLUMN on_denied text NOT NULL DEFAULT 'fail';
ALTER TABLE work_units ADD CONSTRAINT work_units_on_denied_check CHECK (on_denied IN ('fail', 'note')) NOT VALID;
ALTER TABLE work_units ADD COLUMN denials integer;
ALTER TABLE worker_runs ADD COLUMN denials integer;
COMMENT ON COLUMN work_units.on_denied IS
    'What a tool call that was denied and never made good means for a run that would have succeeded: fail, or note.';
COMMENT ON COLUMN work_units.denials IS 'Denied tool calls of all its runs; null when none of them counted.';
COMMENT ON COLUMN worker_runs.denials IS 'Tool calls that were denied; null while it runs, or when it ended without counting.';
