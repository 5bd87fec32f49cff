-- +goose Up
-- A batch is units that were submitted together. Its units are made from its
-- source, a piece at a time; place says how far that is. None begins before all
-- are there, and only so many are let go at once: the others are held.
CREATE TABLE batches (
    id              uuid        PRIMARY KEY,
    tenant          text        NOT NULL,
    title           text        NOT NULL,
    status          text        NOT NULL CHECK (status IN ('enumerating', 'testing', 'awaiting_approval', 'in_progress',
        'finalizing', 'cancelling', 'completed', 'completed_with_failures', 'failed', 'cancelled', 'expired')),
    protocol        text        NOT NULL CHECK (protocol IN ('native', 'openai', 'anthropic')),
    source          jsonb       NOT NULL, -- where its items come from
    unit            jsonb       NOT NULL, -- what is the same in all its units
    input_file      uuid,                 -- that the source reads
    metadata        jsonb       NOT NULL DEFAULT '{}',

    test_first      integer     NOT NULL DEFAULT 0, -- so many run before a person is asked; 0: none
    concurrency     integer     NOT NULL DEFAULT 0, -- units let go at once; 0: many
    max_cost_usd    double precision,               -- of all units together
    stop_when       jsonb,                          -- the rates that pause it
    synthesis       jsonb,                          -- the unit that is given the results
    synthesis_unit  uuid,                           -- once it is made
    rounds          integer     NOT NULL DEFAULT 1, -- how often it was begun: a retry of its units begins it again
    expires_at      timestamptz,

    place           jsonb,                          -- in the source
    rejected        integer     NOT NULL DEFAULT 0, -- items that no unit could be made of
    problems        jsonb       NOT NULL DEFAULT '[]', -- the first of them: [{"line","custom_id","pointer","detail"}]
    filler          uuid,                           -- the process that makes the units
    fill_until      timestamptz,                    -- its lease
    released        integer     NOT NULL DEFAULT 0, -- units that were let go so far

    paused_at       timestamptz,
    paused_by       text        NOT NULL DEFAULT '',
    paused_why      text        NOT NULL DEFAULT '',
    resumed_at      timestamptz,
    why             text        NOT NULL DEFAULT '', -- it failed, was rejected or has expired
    counts          jsonb,                           -- of its units, once it is over
    created_at      timestamptz NOT NULL,
    enumerated_at   timestamptz,
    approved_at     timestamptz,
    cancelled_at    timestamptz,                     -- when that was asked for
    finished_at     timestamptz,
    idempotency_key text,
    body_hash       bytea,

    CONSTRAINT finished_when_over CHECK
        ((status IN ('completed', 'completed_with_failures', 'failed', 'cancelled', 'expired')) = (finished_at IS NOT NULL))
);
CREATE UNIQUE INDEX batches_idempotency ON batches (tenant, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX batches_newest ON batches (tenant, id DESC);
CREATE INDEX batches_live ON batches (id) WHERE finished_at IS NULL;

ALTER TABLE work_units ADD COLUMN batch_id uuid REFERENCES batches;
ALTER TABLE work_units ADD COLUMN custom_id text; -- within its batch
ALTER TABLE work_units ADD COLUMN held boolean NOT NULL DEFAULT false; -- its batch has not let it go
CREATE UNIQUE INDEX work_units_custom_id ON work_units (batch_id, custom_id) WHERE batch_id IS NOT NULL;
CREATE INDEX work_units_of_batch ON work_units (batch_id, state, id) WHERE batch_id IS NOT NULL;
-- Both stay small: what is to be let go next, and what was and is not over.
CREATE INDEX work_units_held ON work_units (batch_id, id) WHERE held AND state = 'queued';
CREATE INDEX work_units_let_go ON work_units (batch_id) WHERE batch_id IS NOT NULL AND NOT held AND state IN ('queued', 'running', 'waiting');

-- A held unit has no place in a lane, and no bell to look for.
DROP INDEX work_units_lane;
CREATE INDEX work_units_lane ON work_units (queue, backend, priority DESC, id) WHERE state = 'queued' AND NOT held;
