-- +goose Up
-- A schedule makes a unit at every time that its cron expression names.
CREATE TABLE schedules (
    tenant     text        NOT NULL,
    name       text        NOT NULL,
    cron       text        NOT NULL, -- five fields, or @daily and the like
    timezone   text        NOT NULL, -- IANA name
    catch_up   text        NOT NULL CHECK (catch_up IN ('skip', 'one', 'all')),
    paused     boolean     NOT NULL DEFAULT false,
    title      text        NOT NULL, -- of its units
    unit       jsonb       NOT NULL, -- what its units are asked for
    next_at    timestamptz NOT NULL, -- the first time no unit was made for
    last_at    timestamptz,          -- the last time a unit was made for
    last_unit  uuid,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, name)
);
CREATE INDEX schedules_due ON schedules (next_at) WHERE NOT paused;
