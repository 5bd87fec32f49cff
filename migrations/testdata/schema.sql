-- What all migrations together come to. Written by the test: run it with -update.

CREATE EXTENSION pg_trgm;

CREATE OR REPLACE FUNCTION public.announce(of_tenant text, event text, data jsonb, unit uuid, batch uuid, callback text)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
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
END $function$;

CREATE OR REPLACE FUNCTION public.announce_batch()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    PERFORM announce(NEW.tenant, 'batch.' || NEW.status, jsonb_strip_nulls(jsonb_build_object(
        'id', NEW.id, 'status', NEW.status, 'title', left(NEW.title, 200), 'why', nullif(left(NEW.why, 1000), ''),
        'url', coalesce((SELECT value FROM settings WHERE name = 'public_url'), '') || '/batches/' || NEW.id))
        || CASE WHEN NEW.counts IS NULL THEN '{}' ELSE jsonb_build_object('counts', NEW.counts) END, NULL, NEW.id, NEW.callback_url);
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION public.announce_unit()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
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
END $function$;

CREATE OR REPLACE FUNCTION public.enter_search()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO unit_search (unit_id, tenant, backend, created_at, title, labels)
    SELECT id, tenant, backend, created_at, title, labels FROM fresh ON CONFLICT DO NOTHING;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION public.fresh_id()
 RETURNS uuid
 LANGUAGE sql
AS $function$
    SELECT encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
        PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid
$function$;

CREATE OR REPLACE FUNCTION public.lane_ends(created timestamp with time zone, deadline timestamp with time zone, expires timestamp with time zone)
 RETURNS timestamp with time zone
 LANGUAGE sql
 IMMUTABLE
AS $function$
    SELECT least(deadline, expires) - least(interval '1 hour', (least(deadline, expires) - created) / 2)
$function$;

CREATE OR REPLACE FUNCTION public.leave_search()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    DELETE FROM unit_search s USING gone WHERE s.unit_id = gone.id;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION public.note_change()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    NEW.changed := pg_current_xact_id();
    RETURN NEW;
END $function$;

CREATE OR REPLACE FUNCTION public.note_stray_blob()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO stray_blobs (id, remove_at) VALUES (OLD.id, clock_timestamp())
    ON CONFLICT (id) DO UPDATE SET remove_at = excluded.remove_at;
    RETURN NULL;
END $function$;

CREATE TABLE batches (
    id uuid NOT NULL,
    tenant text NOT NULL,
    title text NOT NULL,
    status text NOT NULL,
    protocol text NOT NULL,
    source jsonb NOT NULL,
    unit jsonb NOT NULL,
    input_file uuid,
    metadata jsonb NOT NULL DEFAULT '{}'::jsonb,
    test_first integer NOT NULL DEFAULT 0,
    concurrency integer NOT NULL DEFAULT 0,
    max_cost_usd double precision,
    stop_when jsonb,
    synthesis jsonb,
    synthesis_unit uuid,
    rounds integer NOT NULL DEFAULT 1,
    expires_at timestamp with time zone,
    place jsonb,
    rejected integer NOT NULL DEFAULT 0,
    problems jsonb NOT NULL DEFAULT '[]'::jsonb,
    filler uuid,
    fill_until timestamp with time zone,
    released integer NOT NULL DEFAULT 0,
    paused_at timestamp with time zone,
    paused_by text NOT NULL DEFAULT ''::text,
    paused_why text NOT NULL DEFAULT ''::text,
    resumed_at timestamp with time zone,
    why text NOT NULL DEFAULT ''::text,
    counts jsonb,
    created_at timestamp with time zone NOT NULL,
    enumerated_at timestamp with time zone,
    approved_at timestamp with time zone,
    cancelled_at timestamp with time zone,
    finished_at timestamp with time zone,
    idempotency_key text,
    body_hash bytea,
    callback_url text,
    file_sizes jsonb,
    deleted_files text[] NOT NULL DEFAULT '{}'::text[],
    deleted_at timestamp with time zone,
    items json,
    syntheses uuid[] NOT NULL DEFAULT '{}'::uuid[],
    CONSTRAINT batches_pkey PRIMARY KEY (id),
    CONSTRAINT batches_protocol_check CHECK ((protocol = ANY (ARRAY['native'::text, 'openai'::text, 'anthropic'::text]))),
    CONSTRAINT batches_status_check CHECK ((status = ANY (ARRAY['enumerating'::text, 'testing'::text, 'awaiting_approval'::text, 'in_progress'::text, 'finalizing'::text, 'cancelling'::text, 'completed'::text, 'completed_with_failures'::text, 'failed'::text, 'cancelled'::text, 'expired'::text]))),
    CONSTRAINT finished_when_over CHECK (((status = ANY (ARRAY['completed'::text, 'completed_with_failures'::text, 'failed'::text, 'cancelled'::text, 'expired'::text])) = (finished_at IS NOT NULL)))
);
CREATE INDEX batches_deleted ON public.batches USING btree (deleted_at) WHERE (deleted_at IS NOT NULL);
CREATE UNIQUE INDEX batches_idempotency ON public.batches USING btree (tenant, idempotency_key) WHERE (idempotency_key IS NOT NULL);
CREATE INDEX batches_live ON public.batches USING btree (id) WHERE (finished_at IS NULL);
CREATE INDEX batches_newest ON public.batches USING btree (tenant, id DESC);
CREATE INDEX batches_synthesis ON public.batches USING btree (synthesis_unit) WHERE (synthesis_unit IS NOT NULL);
CREATE TRIGGER announce_batch AFTER UPDATE OF status ON public.batches FOR EACH ROW WHEN (((new.status <> old.status) AND (new.status = ANY (ARRAY['awaiting_approval'::text, 'completed'::text, 'completed_with_failures'::text, 'failed'::text, 'cancelled'::text, 'expired'::text])))) EXECUTE FUNCTION announce_batch();

CREATE TABLE callback_secrets (
    tenant text NOT NULL,
    secret text NOT NULL,
    previous_secret text,
    previous_until timestamp with time zone,
    CONSTRAINT callback_secrets_pkey PRIMARY KEY (tenant)
);

CREATE TABLE files (
    id uuid NOT NULL,
    tenant text NOT NULL,
    run_id uuid,
    filename text NOT NULL,
    bytes bigint NOT NULL,
    media_type text NOT NULL,
    sha256 bytea NOT NULL,
    created_at timestamp with time zone NOT NULL,
    purpose text NOT NULL DEFAULT ''::text,
    expires_at timestamp with time zone,
    CONSTRAINT files_pkey PRIMARY KEY (id),
    CONSTRAINT files_bytes_check CHECK ((bytes >= 0)),
    CONSTRAINT files_run_id_fkey FOREIGN KEY (run_id) REFERENCES worker_runs(id) ON DELETE CASCADE,
    CONSTRAINT files_sha256_check CHECK ((length(sha256) = 32))
);
CREATE INDEX files_expiring ON public.files USING btree (expires_at) WHERE (expires_at IS NOT NULL);
CREATE INDEX files_for ON public.files USING btree (tenant, id DESC) WHERE (purpose <> ''::text);
CREATE INDEX files_newest ON public.files USING btree (tenant, id DESC);
CREATE INDEX files_of_run ON public.files USING btree (run_id) WHERE (run_id IS NOT NULL);
CREATE INDEX files_uploaded ON public.files USING btree (created_at) WHERE (run_id IS NULL);
CREATE TRIGGER note_stray_blob AFTER DELETE ON public.files FOR EACH ROW EXECUTE FUNCTION note_stray_blob();

CREATE TABLE pauses (
    kind text NOT NULL,
    name text NOT NULL,
    since timestamp with time zone,
    set_by text NOT NULL DEFAULT ''::text,
    why text NOT NULL DEFAULT ''::text,
    resumed_at timestamp with time zone,
    CONSTRAINT pauses_pkey PRIMARY KEY (kind, name),
    CONSTRAINT pauses_kind_check CHECK ((kind = ANY (ARRAY['queue'::text, 'backend'::text])))
);

CREATE TABLE provider_answers (
    unit_id uuid NOT NULL,
    status smallint NOT NULL,
    request_id text NOT NULL,
    body bytea NOT NULL,
    answered_at timestamp with time zone NOT NULL,
    CONSTRAINT provider_answers_pkey PRIMARY KEY (unit_id),
    CONSTRAINT provider_answers_unit_id_fkey FOREIGN KEY (unit_id) REFERENCES work_units(id) ON DELETE CASCADE
);

CREATE TABLE provider_batches (
    id uuid NOT NULL,
    backend text NOT NULL,
    remote_id text,
    lines integer NOT NULL DEFAULT 0,
    done integer NOT NULL DEFAULT 0,
    answered integer NOT NULL DEFAULT 0,
    created_at timestamp with time zone NOT NULL,
    sending_at timestamp with time zone,
    sent_at timestamp with time zone,
    finished_at timestamp with time zone,
    look_at timestamp with time zone NOT NULL,
    holder uuid,
    tries integer NOT NULL DEFAULT 0,
    error text NOT NULL DEFAULT ''::text,
    guessed boolean NOT NULL DEFAULT false,
    CONSTRAINT provider_batches_pkey PRIMARY KEY (id)
);
CREATE INDEX provider_batches_due ON public.provider_batches USING btree (look_at) WHERE (finished_at IS NULL);
CREATE UNIQUE INDEX provider_batches_remote ON public.provider_batches USING btree (backend, remote_id);

CREATE TABLE result_cache (
    tenant text NOT NULL,
    key bytea NOT NULL,
    run_id uuid NOT NULL,
    created_at timestamp with time zone NOT NULL,
    CONSTRAINT result_cache_pkey PRIMARY KEY (tenant, key),
    CONSTRAINT result_cache_key_check CHECK ((length(key) = 32)),
    CONSTRAINT result_cache_run_id_fkey FOREIGN KEY (run_id) REFERENCES worker_runs(id) ON DELETE CASCADE
);
CREATE INDEX result_cache_by_run ON public.result_cache USING btree (run_id);
CREATE INDEX result_cache_oldest ON public.result_cache USING btree (created_at);

CREATE TABLE schedules (
    tenant text NOT NULL,
    name text NOT NULL,
    cron text NOT NULL,
    timezone text NOT NULL,
    catch_up text NOT NULL,
    paused boolean NOT NULL DEFAULT false,
    title text NOT NULL,
    unit jsonb NOT NULL,
    next_at timestamp with time zone NOT NULL,
    last_at timestamp with time zone,
    last_unit uuid,
    created_at timestamp with time zone NOT NULL,
    CONSTRAINT schedules_pkey PRIMARY KEY (tenant, name),
    CONSTRAINT schedules_catch_up_check CHECK ((catch_up = ANY (ARRAY['skip'::text, 'one'::text, 'all'::text])))
);
CREATE INDEX schedules_due ON public.schedules USING btree (next_at) WHERE (NOT paused);

CREATE TABLE settings (
    name text NOT NULL,
    value text NOT NULL,
    CONSTRAINT settings_pkey PRIMARY KEY (name)
);

CREATE TABLE stray_blobs (
    id uuid NOT NULL,
    remove_at timestamp with time zone NOT NULL,
    CONSTRAINT stray_blobs_pkey PRIMARY KEY (id)
);
CREATE INDEX stray_blobs_due ON public.stray_blobs USING btree (remove_at);

CREATE TABLE tallies (
    tenant text NOT NULL,
    seconds integer NOT NULL,
    since timestamp with time zone NOT NULL,
    what text NOT NULL,
    backend text NOT NULL,
    worker text NOT NULL,
    model text NOT NULL,
    outcome text NOT NULL,
    class text NOT NULL,
    bin smallint NOT NULL,
    count bigint NOT NULL,
    unpriced bigint NOT NULL,
    cost_usd double precision NOT NULL,
    CONSTRAINT tallies_seconds_check CHECK ((seconds = ANY (ARRAY[60, 3600, 86400]))),
    CONSTRAINT tallies_what_check CHECK ((what = ANY (ARRAY['accepted'::text, 'finished'::text, 'wait'::text, 'run'::text, 'took'::text])))
);
CREATE INDEX tallies_since ON public.tallies USING btree (tenant, seconds, since);

CREATE TABLE transcript_chunks (
    seq bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    run_id uuid NOT NULL,
    body bytea NOT NULL,
    rev integer NOT NULL DEFAULT 2147483647,
    CONSTRAINT transcript_chunks_pkey PRIMARY KEY (run_id, rev, seq),
    CONSTRAINT transcript_chunks_run_id_fkey FOREIGN KEY (run_id) REFERENCES worker_runs(id) ON DELETE CASCADE
);

CREATE TABLE transcripts (
    run_id uuid NOT NULL,
    steps integer NOT NULL,
    blob bytea NOT NULL STORAGE e,
    removed_at timestamp with time zone,
    CONSTRAINT transcripts_pkey PRIMARY KEY (run_id),
    CONSTRAINT transcripts_run_id_fkey FOREIGN KEY (run_id) REFERENCES worker_runs(id) ON DELETE CASCADE
);
CREATE INDEX transcripts_kept ON public.transcripts USING btree (run_id) WHERE (removed_at IS NULL);

CREATE TABLE trigger_deliveries (
    id uuid NOT NULL,
    tenant text NOT NULL,
    trigger text NOT NULL,
    delivery text NOT NULL,
    event text NOT NULL,
    outcome text NOT NULL,
    unit_id uuid,
    duplicates integer NOT NULL DEFAULT 0,
    received_at timestamp with time zone NOT NULL,
    batch_id uuid,
    CONSTRAINT trigger_deliveries_pkey PRIMARY KEY (tenant, trigger, delivery),
    CONSTRAINT made_when_accepted CHECK ((num_nonnulls(unit_id, batch_id) = ((outcome = 'accepted'::text))::integer)),
    CONSTRAINT trigger_deliveries_outcome_check CHECK ((outcome = ANY (ARRAY['accepted'::text, 'filtered'::text, 'paused'::text])))
);
CREATE INDEX trigger_deliveries_newest ON public.trigger_deliveries USING btree (tenant, trigger, id DESC);
CREATE INDEX trigger_deliveries_old ON public.trigger_deliveries USING btree (received_at);

CREATE TABLE triggers (
    tenant text NOT NULL,
    name text NOT NULL,
    scheme jsonb NOT NULL,
    secrets bytea[] NOT NULL,
    fingerprints text[] NOT NULL,
    events jsonb NOT NULL,
    filter text NOT NULL,
    event_from text NOT NULL,
    delivery_from text NOT NULL,
    mapping jsonb NOT NULL,
    paused boolean NOT NULL DEFAULT false,
    unit json,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    batch json,
    max_body_bytes integer NOT NULL DEFAULT 1048576,
    CONSTRAINT triggers_pkey PRIMARY KEY (tenant, name),
    CONSTRAINT max_body_bytes_in_range CHECK (((max_body_bytes >= 1) AND (max_body_bytes <= 26214400))),
    CONSTRAINT triggers_secrets_check CHECK (((cardinality(secrets) >= 1) AND (cardinality(secrets) <= 2))),
    CONSTRAINT unit_or_batch CHECK ((num_nonnulls(unit, batch) = 1))
);

CREATE TABLE unit_files (
    unit_id uuid NOT NULL,
    file_id uuid NOT NULL,
    CONSTRAINT unit_files_pkey PRIMARY KEY (unit_id, file_id),
    CONSTRAINT unit_files_file_id_fkey FOREIGN KEY (file_id) REFERENCES files(id) ON DELETE CASCADE,
    CONSTRAINT unit_files_unit_id_fkey FOREIGN KEY (unit_id) REFERENCES work_units(id) ON DELETE CASCADE
);
CREATE INDEX unit_files_by_file ON public.unit_files USING btree (file_id);

CREATE TABLE unit_search (
    unit_id uuid NOT NULL,
    tenant text NOT NULL,
    backend text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    title text NOT NULL,
    labels jsonb NOT NULL,
    CONSTRAINT unit_search_pkey PRIMARY KEY (unit_id)
);
CREATE INDEX unit_search_backend ON public.unit_search USING btree (tenant, backend, unit_id DESC);
CREATE INDEX unit_search_created ON public.unit_search USING btree (tenant, created_at);
CREATE INDEX unit_search_labels ON public.unit_search USING gin (labels jsonb_path_ops) WHERE (labels <> '{}'::jsonb);
CREATE INDEX unit_search_title ON public.unit_search USING gin (title gin_trgm_ops);

CREATE TABLE webhook_deliveries (
    id uuid NOT NULL,
    tenant text NOT NULL,
    endpoint_id uuid,
    receiver uuid NOT NULL,
    url text NOT NULL,
    unit_id uuid,
    batch_id uuid,
    event_type text NOT NULL,
    body bytea NOT NULL,
    state text NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    failed smallint NOT NULL DEFAULT 0,
    next_at timestamp with time zone NOT NULL,
    check_at timestamp with time zone NOT NULL,
    dispatch integer NOT NULL DEFAULT 0,
    claimed_by uuid,
    lease_until timestamp with time zone,
    tried_at timestamp with time zone,
    last_status integer,
    last_error text,
    response text,
    created_at timestamp with time zone NOT NULL,
    delivered_at timestamp with time zone,
    CONSTRAINT webhook_deliveries_pkey PRIMARY KEY (id),
    CONSTRAINT delivered_when_delivered CHECK (((state = 'delivered'::text) = (delivered_at IS NOT NULL))),
    CONSTRAINT leased_when_claimed CHECK (((claimed_by IS NULL) = (lease_until IS NULL))),
    CONSTRAINT webhook_deliveries_state_check CHECK ((state = ANY (ARRAY['pending'::text, 'delivered'::text, 'dead'::text, 'cancelled'::text])))
);
CREATE INDEX webhook_deliveries_by_batch ON public.webhook_deliveries USING btree (batch_id, id DESC) WHERE (batch_id IS NOT NULL);
CREATE INDEX webhook_deliveries_by_endpoint ON public.webhook_deliveries USING btree (endpoint_id, id DESC) WHERE (endpoint_id IS NOT NULL);
CREATE INDEX webhook_deliveries_by_state ON public.webhook_deliveries USING btree (tenant, state, id DESC);
CREATE INDEX webhook_deliveries_by_unit ON public.webhook_deliveries USING btree (unit_id) WHERE (unit_id IS NOT NULL);
CREATE INDEX webhook_deliveries_claimed ON public.webhook_deliveries USING btree (lease_until) WHERE (claimed_by IS NOT NULL);
CREATE INDEX webhook_deliveries_due ON public.webhook_deliveries USING btree (receiver, next_at) WHERE (state = 'pending'::text);
CREATE INDEX webhook_deliveries_newest ON public.webhook_deliveries USING btree (tenant, id DESC);

CREATE TABLE webhook_endpoints (
    id uuid NOT NULL,
    tenant text NOT NULL,
    url text NOT NULL,
    description text NOT NULL,
    events text[] NOT NULL,
    secret text NOT NULL,
    previous_secret text,
    previous_until timestamp with time zone,
    disabled_at timestamp with time zone,
    disabled_why text NOT NULL DEFAULT ''::text,
    created_at timestamp with time zone NOT NULL,
    CONSTRAINT webhook_endpoints_pkey PRIMARY KEY (id)
);
CREATE INDEX webhook_endpoints_of ON public.webhook_endpoints USING btree (tenant, id);

CREATE TABLE work_units (
    id uuid NOT NULL,
    tenant text NOT NULL,
    state text NOT NULL,
    title text NOT NULL,
    backend text NOT NULL,
    worker text NOT NULL DEFAULT ''::text,
    model text NOT NULL DEFAULT ''::text,
    queue text NOT NULL,
    priority smallint NOT NULL,
    labels jsonb NOT NULL DEFAULT '{}'::jsonb,
    prompt text NOT NULL,
    system_prompt text NOT NULL DEFAULT ''::text,
    payload json NOT NULL,
    working_directory text NOT NULL DEFAULT ''::text,
    output_schema json,
    missing_key text NOT NULL,
    max_turns integer NOT NULL DEFAULT 0,
    max_cost_usd double precision,
    max_retries integer,
    timeout double precision NOT NULL,
    idle_timeout double precision NOT NULL,
    not_before timestamp with time zone,
    deadline timestamp with time zone,
    run_count integer NOT NULL DEFAULT 0,
    failures integer NOT NULL DEFAULT 0,
    losses integer NOT NULL DEFAULT 0,
    waits integer NOT NULL DEFAULT 0,
    crashes integer NOT NULL DEFAULT 0,
    resume_session text,
    session_cost_usd double precision NOT NULL DEFAULT 0,
    dispatch integer NOT NULL DEFAULT 1,
    check_at timestamp with time zone NOT NULL,
    cancel_requested_at timestamp with time zone,
    summary text,
    final_run uuid,
    error_class text,
    error_message text,
    cost_usd double precision NOT NULL DEFAULT 0,
    created_at timestamp with time zone NOT NULL,
    started_at timestamp with time zone,
    finished_at timestamp with time zone,
    idempotency_key text,
    body_hash bytea,
    session_policy text NOT NULL DEFAULT 'resume'::text,
    deaths integer NOT NULL DEFAULT 0,
    files jsonb NOT NULL DEFAULT '[]'::jsonb,
    expires_at timestamp with time zone,
    startup_timeout double precision NOT NULL DEFAULT 0,
    changed xid8 NOT NULL DEFAULT pg_current_xact_id(),
    batch_id uuid,
    custom_id text,
    held boolean NOT NULL DEFAULT false,
    cache_ttl double precision,
    cache text,
    cached_from uuid,
    callback_url text,
    request json,
    lane text NOT NULL DEFAULT 'live'::text,
    provider_batch uuid,
    turn integer NOT NULL DEFAULT 0,
    unpriced_runs integer NOT NULL DEFAULT 0,
    runs_live boolean NOT NULL DEFAULT false,
    on_denied text NOT NULL DEFAULT 'fail'::text,
    denials integer,
    accept json,
    project_settings text,
    mcp_servers jsonb,
    CONSTRAINT work_units_pkey PRIMARY KEY (id),
    CONSTRAINT cache_without_directory CHECK (((cache_ttl IS NULL) OR (working_directory = ''::text))),
    CONSTRAINT error_when_failed CHECK (((state <> ALL (ARRAY['failed'::text, 'timed_out'::text])) OR (error_class IS NOT NULL))),
    CONSTRAINT finished_when_final CHECK (((state = ANY (ARRAY['succeeded'::text, 'failed'::text, 'cancelled'::text, 'timed_out'::text])) = (finished_at IS NOT NULL))),
    CONSTRAINT from_when_hit CHECK (((cached_from IS NOT NULL) = (NOT (cache IS DISTINCT FROM 'hit'::text)))),
    CONSTRAINT project_settings_known CHECK ((project_settings = ANY (ARRAY['ignore'::text, 'read'::text]))),
    CONSTRAINT request_or_prompt CHECK (((request IS NULL) OR (prompt = ''::text))),
    CONSTRAINT started_when_running CHECK (((state <> 'running'::text) OR (started_at IS NOT NULL))),
    CONSTRAINT where_it_waits CHECK ((
CASE state
    WHEN 'queued'::text THEN ((NOT held) OR ((batch_id IS NOT NULL) AND ((provider_batch IS NULL) OR runs_live)))
    WHEN 'waiting'::text THEN ((NOT held) AND (lane = 'batch'::text) AND (NOT runs_live))
    WHEN 'running'::text THEN (NOT held)
    ELSE true
END AND ((lane = 'batch'::text) OR ((provider_batch IS NULL) AND (NOT runs_live))))),
    CONSTRAINT work_units_batch_id_fkey FOREIGN KEY (batch_id) REFERENCES batches(id),
    CONSTRAINT work_units_cache_check CHECK ((cache = ANY (ARRAY['hit'::text, 'miss'::text]))),
    CONSTRAINT work_units_cache_ttl_check CHECK ((cache_ttl > (0)::double precision)),
    CONSTRAINT work_units_idle_timeout_check CHECK ((idle_timeout > (0)::double precision)),
    CONSTRAINT work_units_lane_check CHECK ((lane = ANY (ARRAY['live'::text, 'batch'::text]))),
    CONSTRAINT work_units_missing_key_check CHECK ((missing_key = ANY (ARRAY['fail'::text, 'note'::text]))),
    CONSTRAINT work_units_on_denied_check CHECK ((on_denied = ANY (ARRAY['fail'::text, 'note'::text]))),
    CONSTRAINT work_units_priority_check CHECK (((priority >= 0) AND (priority <= 9))),
    CONSTRAINT work_units_session_policy_check CHECK ((session_policy = ANY (ARRAY['resume'::text, 'fresh'::text]))),
    CONSTRAINT work_units_startup_timeout_check CHECK ((startup_timeout >= (0)::double precision)),
    CONSTRAINT work_units_state_check CHECK ((state = ANY (ARRAY['queued'::text, 'running'::text, 'waiting'::text, 'succeeded'::text, 'failed'::text, 'cancelled'::text, 'timed_out'::text]))),
    CONSTRAINT work_units_timeout_check CHECK ((timeout > (0)::double precision))
);
CREATE INDEX work_units_by_class ON public.work_units USING btree (tenant, error_class, id DESC) WHERE (error_class IS NOT NULL);
CREATE INDEX work_units_by_state ON public.work_units USING btree (tenant, state, id DESC);
CREATE INDEX work_units_changed ON public.work_units USING btree (changed);
CREATE UNIQUE INDEX work_units_custom_id ON public.work_units USING btree (batch_id, custom_id) WHERE (batch_id IS NOT NULL);
CREATE INDEX work_units_deadline ON public.work_units USING btree (deadline) WHERE ((deadline IS NOT NULL) AND (state = ANY (ARRAY['queued'::text, 'waiting'::text])));
CREATE INDEX work_units_due ON public.work_units USING btree (check_at, id) WHERE (state = 'queued'::text);
CREATE INDEX work_units_expiry ON public.work_units USING btree (expires_at) WHERE ((expires_at IS NOT NULL) AND (state = 'queued'::text) AND (started_at IS NULL));
CREATE INDEX work_units_finished ON public.work_units USING btree (tenant, finished_at) INCLUDE (state) WHERE (finished_at IS NOT NULL);
CREATE INDEX work_units_held ON public.work_units USING btree (batch_id, turn, id) WHERE (held AND (state = 'queued'::text));
CREATE UNIQUE INDEX work_units_idempotency ON public.work_units USING btree (tenant, idempotency_key) WHERE (idempotency_key IS NOT NULL);
CREATE INDEX work_units_keyed ON public.work_units USING btree (created_at) WHERE (idempotency_key IS NOT NULL);
CREATE INDEX work_units_lane ON public.work_units USING btree (queue, backend, priority DESC, id) WHERE ((state = 'queued'::text) AND (NOT held));
CREATE INDEX work_units_late ON public.work_units USING btree (lane_ends(created_at, deadline, expires_at)) WHERE ((state = 'waiting'::text) AND (lane = 'batch'::text));
CREATE INDEX work_units_let_go ON public.work_units USING btree (batch_id) WHERE ((batch_id IS NOT NULL) AND (NOT held) AND (state = ANY (ARRAY['queued'::text, 'running'::text, 'waiting'::text])));
CREATE INDEX work_units_of_batch ON public.work_units USING btree (batch_id, state, id) WHERE (batch_id IS NOT NULL);
CREATE INDEX work_units_packed ON public.work_units USING btree (provider_batch, id) WHERE (provider_batch IS NOT NULL);
CREATE INDEX work_units_started ON public.work_units USING btree (tenant, started_at) INCLUDE (created_at) WHERE (started_at IS NOT NULL);
CREATE INDEX work_units_to_pack ON public.work_units USING btree (backend, id) WHERE ((state = 'waiting'::text) AND (lane = 'batch'::text) AND (provider_batch IS NULL));
CREATE INDEX work_units_unpriced ON public.work_units USING btree (batch_id) WHERE ((batch_id IS NOT NULL) AND (unpriced_runs > 0));
CREATE TRIGGER announce_unit AFTER UPDATE OF state ON public.work_units FOR EACH ROW WHEN (((new.state = ANY (ARRAY['succeeded'::text, 'failed'::text, 'cancelled'::text, 'timed_out'::text])) AND (old.state <> ALL (ARRAY['succeeded'::text, 'failed'::text, 'cancelled'::text, 'timed_out'::text])))) EXECUTE FUNCTION announce_unit();
CREATE TRIGGER announce_unit_at_once AFTER INSERT ON public.work_units FOR EACH ROW WHEN ((new.state = ANY (ARRAY['succeeded'::text, 'failed'::text, 'cancelled'::text, 'timed_out'::text]))) EXECUTE FUNCTION announce_unit();
CREATE TRIGGER enter_search AFTER INSERT ON public.work_units REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION enter_search();
CREATE TRIGGER leave_search AFTER DELETE ON public.work_units REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION leave_search();
CREATE TRIGGER note_change BEFORE UPDATE OF state, cancel_requested_at, not_before, cost_usd ON public.work_units FOR EACH ROW EXECUTE FUNCTION note_change();

CREATE TABLE worker_processes (
    id uuid NOT NULL,
    hostname text NOT NULL,
    pid integer NOT NULL,
    identity text NOT NULL DEFAULT ''::text,
    version text NOT NULL,
    slots integer NOT NULL,
    running integer NOT NULL DEFAULT 0,
    queues text[] NOT NULL,
    backends jsonb NOT NULL,
    started_at timestamp with time zone NOT NULL,
    beat_at timestamp with time zone NOT NULL,
    lease_until timestamp with time zone NOT NULL,
    stopped_at timestamp with time zone,
    blocked text NOT NULL DEFAULT ''::text,
    CONSTRAINT worker_processes_pkey PRIMARY KEY (id)
);
CREATE INDEX worker_processes_live ON public.worker_processes USING btree (lease_until) WHERE (stopped_at IS NULL);

CREATE TABLE worker_runs (
    id uuid NOT NULL,
    tenant text NOT NULL,
    unit_id uuid NOT NULL,
    attempt integer NOT NULL,
    worker_type text NOT NULL,
    worker_process uuid,
    status text NOT NULL,
    live_status text,
    model text,
    rendered_prompt text,
    result text,
    error_class text,
    error_message text,
    session_id text,
    num_turns integer NOT NULL DEFAULT 0,
    tool_calls integer NOT NULL DEFAULT 0,
    input_tokens bigint NOT NULL DEFAULT 0,
    output_tokens bigint NOT NULL DEFAULT 0,
    cache_read_tokens bigint NOT NULL DEFAULT 0,
    cache_creation_tokens bigint NOT NULL DEFAULT 0,
    total_cost_usd double precision,
    cost_incomplete boolean NOT NULL DEFAULT false,
    duration_ms bigint NOT NULL DEFAULT 0,
    duration_api_ms bigint NOT NULL DEFAULT 0,
    execution_time double precision NOT NULL DEFAULT 0,
    output_files jsonb NOT NULL DEFAULT '[]'::jsonb,
    definition jsonb,
    started_at timestamp with time zone NOT NULL,
    completed_at timestamp with time zone,
    given_up boolean NOT NULL DEFAULT false,
    changed xid8 NOT NULL DEFAULT pg_current_xact_id(),
    rev integer,
    http_status smallint NOT NULL DEFAULT 0,
    request_id text NOT NULL DEFAULT ''::text,
    session_total_usd double precision,
    session_resumed boolean NOT NULL DEFAULT false,
    implausible text[] NOT NULL DEFAULT '{}'::text[],
    denials integer,
    CONSTRAINT worker_runs_pkey PRIMARY KEY (id),
    CONSTRAINT completed_when_over CHECK (((status = 'running'::text) = (completed_at IS NULL))),
    CONSTRAINT one_run_per_attempt UNIQUE (unit_id, attempt),
    CONSTRAINT worker_runs_attempt_check CHECK ((attempt > 0)),
    CONSTRAINT worker_runs_status_check CHECK ((status = ANY (ARRAY['running'::text, 'succeeded'::text, 'failed'::text, 'cancelled'::text, 'timed_out'::text, 'lost'::text, 'fenced'::text, 'released'::text]))),
    CONSTRAINT worker_runs_unit_id_fkey FOREIGN KEY (unit_id) REFERENCES work_units(id) ON DELETE CASCADE
);
CREATE INDEX worker_runs_completed ON public.worker_runs USING btree (tenant, completed_at) WHERE (completed_at IS NOT NULL);
CREATE UNIQUE INDEX worker_runs_one_live ON public.worker_runs USING btree (unit_id) WHERE (status = 'running'::text);
CREATE INDEX worker_runs_owned ON public.worker_runs USING btree (worker_process) WHERE (status = 'running'::text);
CREATE INDEX worker_runs_unsuccessful ON public.worker_runs USING btree (tenant, status, id DESC) WHERE (status <> ALL (ARRAY['running'::text, 'succeeded'::text]));
CREATE TRIGGER note_change BEFORE UPDATE ON public.worker_runs FOR EACH ROW EXECUTE FUNCTION note_change();
