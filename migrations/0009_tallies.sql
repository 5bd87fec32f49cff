-- +goose Up
-- What the overview counts, by minute, hour and day. A minute that is over is
-- counted once; what came after it is counted from units and runs. A row stays
-- right when its units and runs are deleted.
CREATE TABLE tallies (
    tenant   text        NOT NULL,
    seconds  integer     NOT NULL CHECK (seconds IN (60, 3600, 86400)),
    since    timestamptz NOT NULL,
    what     text        NOT NULL CHECK (what IN ('accepted', 'finished', 'wait', 'run', 'took')),
    backend  text        NOT NULL,
    worker   text        NOT NULL,
    model    text        NOT NULL,
    outcome  text        NOT NULL, -- of finished the unit's state, of run the run's status
    class    text        NOT NULL, -- of the error
    bin      smallint    NOT NULL, -- of wait and took: how long, on a logarithmic scale
    count    bigint      NOT NULL,
    unpriced bigint      NOT NULL, -- of run: those whose cost is not known, or not all of it
    cost_usd double precision NOT NULL
);
CREATE INDEX tallies_since ON tallies (tenant, seconds, since);

-- What was not counted yet.
CREATE INDEX work_units_created ON work_units (tenant, created_at);
CREATE INDEX work_units_started ON work_units (tenant, started_at) INCLUDE (created_at) WHERE started_at IS NOT NULL;
CREATE INDEX work_units_finished ON work_units (tenant, finished_at) INCLUDE (state) WHERE finished_at IS NOT NULL;
CREATE INDEX worker_runs_completed ON worker_runs (tenant, completed_at) WHERE completed_at IS NOT NULL;
