-- +goose Up
-- A trigger makes a unit of each webhook that comes for it.
CREATE TABLE triggers (
    tenant        text        NOT NULL,
    name          text        NOT NULL,
    scheme        jsonb       NOT NULL, -- how senders prove who they are: preset, header, algorithm, …
    secrets       bytea[]     NOT NULL CHECK (cardinality(secrets) BETWEEN 1 AND 2), -- the current one first; encrypted when the server has a key
    fingerprints  text[]      NOT NULL,
    events        jsonb       NOT NULL, -- patterns; []: every event
    filter        text        NOT NULL, -- expressions, empty for none
    event_from    text        NOT NULL,
    delivery_from text        NOT NULL,
    mapping       jsonb       NOT NULL, -- payload key → expression
    paused        boolean     NOT NULL DEFAULT false,
    unit          json        NOT NULL, -- what its units are asked for
    created_at    timestamptz NOT NULL,
    updated_at    timestamptz NOT NULL,
    PRIMARY KEY (tenant, name)
);

-- What came for triggers. One delivery makes one unit, however often it comes;
-- rows outlive their trigger, so that a replay makes none after it was put anew.
CREATE TABLE trigger_deliveries (
    id          uuid        NOT NULL, -- UUIDv7, for lists
    tenant      text        NOT NULL,
    trigger     text        NOT NULL,
    delivery    text        NOT NULL, -- the sender's name for it
    event       text        NOT NULL,
    outcome     text        NOT NULL CHECK (outcome IN ('accepted', 'filtered', 'paused')),
    unit_id     uuid,
    duplicates  integer     NOT NULL DEFAULT 0, -- times that it came again
    received_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, trigger, delivery),
    CONSTRAINT unit_when_accepted CHECK ((outcome = 'accepted') = (unit_id IS NOT NULL))
);
CREATE INDEX trigger_deliveries_newest ON trigger_deliveries (tenant, trigger, id DESC);
CREATE INDEX trigger_deliveries_old ON trigger_deliveries (received_at);
