-- +goose Up
-- Who is told what happens. A secret signs the messages; the one before it
-- signs too until a time, so that a receiver can change over.
CREATE TABLE webhook_endpoints (
    id              uuid        PRIMARY KEY,
    tenant          text        NOT NULL,
    url             text        NOT NULL,
    description     text        NOT NULL,
    events          text[]      NOT NULL, -- types, noun.* or *
    secret          text        NOT NULL,
    previous_secret text,
    previous_until  timestamptz,
    disabled_at     timestamptz,
    disabled_why    text        NOT NULL DEFAULT '',
    created_at      timestamptz NOT NULL
);
CREATE INDEX webhook_endpoints_of ON webhook_endpoints (tenant, id);

-- What signs the messages to a callback_url.
CREATE TABLE callback_secrets (
    tenant          text PRIMARY KEY,
    secret          text NOT NULL,
    previous_secret text,
    previous_until  timestamptz
);

ALTER TABLE work_units ADD COLUMN callback_url text;
ALTER TABLE batches ADD COLUMN callback_url text;

-- One row per message and receiver, written with what it tells of. The body is
-- kept, so every try sends the same bytes.
CREATE TABLE webhook_deliveries (
    id           uuid        PRIMARY KEY, -- the webhook-id is msg_ and this without dashes
    tenant       text        NOT NULL,
    endpoint_id  uuid,                    -- null: a callback
    receiver     uuid        NOT NULL,    -- the endpoint, or the callback's host: what is not to be asked too much at once
    url          text        NOT NULL,
    unit_id      uuid,
    batch_id     uuid,
    event_type   text        NOT NULL,
    body         bytea       NOT NULL,
    state        text        NOT NULL CHECK (state IN ('pending', 'delivered', 'dead', 'cancelled')),
    attempts     integer     NOT NULL DEFAULT 0, -- the number of the newest try: the fence
    failed       smallint    NOT NULL DEFAULT 0, -- tries of this round of the schedule
    next_at      timestamptz NOT NULL,
    check_at     timestamptz NOT NULL,           -- when to look whether a bell is still on its way
    dispatch     integer     NOT NULL DEFAULT 0, -- the number of the newest bell
    claimed_by   uuid,                           -- the worker process that is at it
    lease_until  timestamptz,
    tried_at     timestamptz,
    last_status  integer,                        -- of HTTP
    last_error   text,
    response     text,                           -- the start of the last answer
    created_at   timestamptz NOT NULL,
    delivered_at timestamptz,
    CONSTRAINT delivered_when_delivered CHECK ((state = 'delivered') = (delivered_at IS NOT NULL)),
    CONSTRAINT leased_when_claimed CHECK ((claimed_by IS NULL) = (lease_until IS NULL))
);
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (receiver, next_at) WHERE state = 'pending';
CREATE INDEX webhook_deliveries_claimed ON webhook_deliveries (lease_until) WHERE claimed_by IS NOT NULL;
CREATE INDEX webhook_deliveries_newest ON webhook_deliveries (tenant, id DESC);
CREATE INDEX webhook_deliveries_by_state ON webhook_deliveries (tenant, state, id DESC);
CREATE INDEX webhook_deliveries_by_endpoint ON webhook_deliveries (endpoint_id, id DESC) WHERE endpoint_id IS NOT NULL;
CREATE INDEX webhook_deliveries_by_unit ON webhook_deliveries (unit_id) WHERE unit_id IS NOT NULL;
CREATE INDEX webhook_deliveries_by_batch ON webhook_deliveries (batch_id, id DESC) WHERE batch_id IS NOT NULL;

-- PostgreSQL before 18 makes no UUIDv7.
-- +goose StatementBegin
CREATE FUNCTION fresh_id() RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
        PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid
$$;
-- +goose StatementEnd

-- Writes the deliveries of one event: to the endpoints that want it, and to
-- callback, if there is one. It is called by the transaction that makes the
-- event true, so neither is there without the other.
-- +goose StatementBegin
CREATE FUNCTION announce(of_tenant text, event text, data jsonb, unit uuid, batch uuid, callback text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    at timestamptz := clock_timestamp();
BEGIN
    INSERT INTO webhook_deliveries (id, tenant, endpoint_id, receiver, url, unit_id, batch_id, event_type, body, state, next_at, check_at, created_at)
    SELECT fresh_id(), of_tenant, r.endpoint, r.receiver, r.url, unit, batch, event,
        convert_to(json_build_object('type', event, 'timestamp', to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), 'data', data)::text, 'UTF8'),
        'pending', at, at, at
    FROM (
        SELECT e.id AS endpoint, e.id AS receiver, e.url FROM webhook_endpoints e
        WHERE e.tenant = of_tenant AND e.disabled_at IS NULL AND e.events && ARRAY[event, split_part(event, '.', 1) || '.*', '*']
        UNION ALL
        SELECT NULL, md5(lower(substring(callback FROM '^[^:]+://[^/?]+')))::uuid, callback WHERE callback IS NOT NULL
    ) AS r;
END $$;
-- +goose StatementEnd

-- Every way in which a unit ends passes here. What is told of it is thin: the
-- rest is at its url. Each part is bounded, and so is the whole.
-- +goose StatementBegin
CREATE FUNCTION announce_unit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.callback_url IS NULL AND NOT EXISTS (SELECT FROM webhook_endpoints WHERE tenant = NEW.tenant AND disabled_at IS NULL
        AND events && ARRAY['work_unit.' || NEW.state, 'work_unit.*', '*']) THEN
        RETURN NULL;
    END IF;
    PERFORM announce(NEW.tenant, 'work_unit.' || NEW.state, jsonb_strip_nulls(jsonb_build_object(
        'id', NEW.id, 'status', NEW.state, 'backend', NEW.backend, 'title', left(NEW.title, 200), 'cost_usd', NEW.cost_usd,
        'batch_id', NEW.batch_id, 'custom_id', left(NEW.custom_id, 200),
        'labels', CASE WHEN octet_length(NEW.labels::text) <= 8000 THEN NEW.labels END,
        'error', CASE WHEN NEW.error_class IS NOT NULL AND NEW.state <> 'succeeded' THEN
            jsonb_build_object('class', NEW.error_class, 'message', left(NEW.error_message, 1000)) END,
        'url', coalesce((SELECT value FROM settings WHERE name = 'public_url'), '') || '/work-units/' || NEW.id)), NEW.id, NEW.batch_id, NEW.callback_url);
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER announce_unit AFTER UPDATE OF state ON work_units FOR EACH ROW
    WHEN (NEW.state IN ('succeeded', 'failed', 'cancelled', 'timed_out') AND OLD.state NOT IN ('succeeded', 'failed', 'cancelled', 'timed_out'))
    EXECUTE FUNCTION announce_unit();
CREATE TRIGGER announce_unit_at_once AFTER INSERT ON work_units FOR EACH ROW
    WHEN (NEW.state IN ('succeeded', 'failed', 'cancelled', 'timed_out'))
    EXECUTE FUNCTION announce_unit();

-- +goose StatementBegin
CREATE FUNCTION announce_batch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM announce(NEW.tenant, 'batch.' || NEW.status, jsonb_strip_nulls(jsonb_build_object(
        'id', NEW.id, 'status', NEW.status, 'title', left(NEW.title, 200), 'why', nullif(left(NEW.why, 1000), ''), 'counts', NEW.counts,
        'url', coalesce((SELECT value FROM settings WHERE name = 'public_url'), '') || '/batches/' || NEW.id)), NULL, NEW.id, NEW.callback_url);
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER announce_batch AFTER UPDATE OF status ON batches FOR EACH ROW
    WHEN (NEW.status <> OLD.status AND NEW.status IN
        ('awaiting_approval', 'completed', 'completed_with_failures', 'failed', 'cancelled', 'expired'))
    EXECUTE FUNCTION announce_batch();
