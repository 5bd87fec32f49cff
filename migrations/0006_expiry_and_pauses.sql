-- +goose Up
-- A unit that has not started by then does not start any more.
ALTER TABLE work_units ADD COLUMN expires_at timestamptz;
CREATE INDEX work_units_expiry ON work_units (expires_at) WHERE expires_at IS NOT NULL AND state = 'queued' AND started_at IS NULL;
-- What a person looks through after a bad night.
CREATE INDEX work_units_by_class ON work_units (tenant, error_class, id DESC) WHERE error_class IS NOT NULL;

-- What operators have paused. A row stays after the resume: worker processes
-- tell by its time that they are to try a backend again that refused them.
CREATE TABLE pauses (
    kind       text NOT NULL CHECK (kind IN ('queue', 'backend')),
    name       text NOT NULL,
    since      timestamptz, -- null: it goes on
    set_by     text NOT NULL DEFAULT '',
    why        text NOT NULL DEFAULT '',
    resumed_at timestamptz,
    PRIMARY KEY (kind, name)
);
