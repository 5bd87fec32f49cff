-- +goose Up
ALTER TABLE work_units ADD COLUMN unpriced_runs integer NOT NULL DEFAULT 0;
COMMENT ON COLUMN work_units.cost_usd IS
    'What is known of the cost of all its runs that are over, in US dollars. It is the whole cost when unpriced_runs is 0.';
COMMENT ON COLUMN work_units.unpriced_runs IS
    'Its runs that are over and whose cost is not known, or not all of it: total_cost_usd is null or cost_incomplete is true. '
    'That is a run which may have reached a model that costs money and was lost, or did not tell. '
    'A run that certainly reached no model, and one of the mock backend, has a total_cost_usd: 0 or what it says. '
    'Whoever closes a run keeps this beside cost_usd, in the same statement.';
-- Messages say null where nothing is known of the cost.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION announce_unit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.callback_url IS NULL AND NOT EXISTS (SELECT FROM webhook_endpoints WHERE tenant = NEW.tenant AND disabled_at IS NULL
        AND events && ARRAY['work_unit.' || NEW.state, 'work_unit.*', '*']) THEN
        RETURN NULL;
    END IF;
    PERFORM announce(NEW.tenant, 'work_unit.' || NEW.state, jsonb_strip_nulls(jsonb_build_object(
        'id', NEW.id, 'status', NEW.state, 'backend', NEW.backend, 'title', left(NEW.title, 200),
        'batch_id', NEW.batch_id, 'custom_id', left(NEW.custom_id, 200),
        'labels', CASE WHEN octet_length(NEW.labels::text) <= 8000 THEN NEW.labels END,
        'error', CASE WHEN NEW.error_class IS NOT NULL AND NEW.state <> 'succeeded' THEN
            jsonb_build_object('class', NEW.error_class, 'message', left(NEW.error_message, 1000)) END,
        'url', coalesce((SELECT value FROM settings WHERE name = 'public_url'), '') || '/work-units/' || NEW.id))
        || jsonb_build_object('cost_usd', CASE WHEN NEW.cost_usd <> 0 OR NEW.unpriced_runs = 0 THEN NEW.cost_usd END,
            'unpriced_runs', NEW.unpriced_runs), NEW.id, NEW.batch_id, NEW.callback_url);
    RETURN NULL;
END $$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION announce_batch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM announce(NEW.tenant, 'batch.' || NEW.status, jsonb_strip_nulls(jsonb_build_object(
        'id', NEW.id, 'status', NEW.status, 'title', left(NEW.title, 200), 'why', nullif(left(NEW.why, 1000), ''),
        'url', coalesce((SELECT value FROM settings WHERE name = 'public_url'), '') || '/batches/' || NEW.id))
        || CASE WHEN NEW.counts IS NULL THEN '{}' ELSE jsonb_build_object('counts', NEW.counts) END, NULL, NEW.id, NEW.callback_url);
    RETURN NULL;
END $$;
-- +goose StatementEnd
