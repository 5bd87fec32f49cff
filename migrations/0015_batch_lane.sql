-- +goose Up
-- The batch lane: a unit whose call goes through the provider's own batches is
-- waiting until it is answered. Then it is queued, and its run finds the answer.
ALTER TABLE work_units ADD COLUMN lane text NOT NULL DEFAULT 'live' CHECK (lane IN ('live', 'batch'));
ALTER TABLE work_units ADD COLUMN provider_batch uuid; -- that it was packed into last
CREATE INDEX work_units_to_pack ON work_units (backend, id) WHERE state = 'waiting' AND lane = 'batch' AND provider_batch IS NULL;
CREATE INDEX work_units_packed ON work_units (provider_batch, id) WHERE provider_batch IS NOT NULL;
-- When a unit of the batch lane is run live after all: an hour before its end,
-- or when half of its time is over.
-- +goose StatementBegin
CREATE FUNCTION lane_ends(created timestamptz, deadline timestamptz, expires timestamptz) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
    SELECT least(deadline, expires) - least(interval '1 hour', (least(deadline, expires) - created) / 2)
$$;
-- +goose StatementEnd
CREATE INDEX work_units_late ON work_units (lane_ends(created_at, deadline, expires_at)) WHERE state = 'waiting' AND lane = 'batch';

-- A provider's batch, as far as it concerns us. Its row is there before the
-- provider is asked, so that one whose maker died is looked for.
CREATE TABLE provider_batches (
    id          uuid        PRIMARY KEY, -- the key it is found by at the provider
    backend     text        NOT NULL,
    remote_id   text,                    -- the provider's own
    lines       integer     NOT NULL DEFAULT 0,
    done        integer     NOT NULL DEFAULT 0, -- as far as the provider tells
    answered    integer     NOT NULL DEFAULT 0, -- answers that a unit has taken
    created_at  timestamptz NOT NULL,
    sending_at  timestamptz,             -- it may be at the provider since
    sent_at     timestamptz,             -- it is
    finished_at timestamptz,
    look_at     timestamptz NOT NULL,    -- when to see to it next
    holder      uuid,                    -- the worker process that does
    tries       integer     NOT NULL DEFAULT 0, -- to send it
    error       text        NOT NULL DEFAULT '' -- the last
);
CREATE INDEX provider_batches_due ON provider_batches (look_at) WHERE finished_at IS NULL;
CREATE UNIQUE INDEX provider_batches_remote ON provider_batches (backend, remote_id);

-- Answers that wait for the runs of their units.
CREATE TABLE provider_answers (
    unit_id     uuid        PRIMARY KEY REFERENCES work_units ON DELETE CASCADE,
    status      smallint    NOT NULL, -- of HTTP, or what it would have been
    request_id  text        NOT NULL,
    body        bytea       NOT NULL,
    answered_at timestamptz NOT NULL
);
