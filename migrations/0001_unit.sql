-- +goose Up
CREATE EXTENSION IF NOT EXISTS pg_trgm;

-- A unit is one accepted piece of work. Columns are in the order a person
-- reading SELECT * wants them. A unit exists, is claimed and is finished only
-- here; Redis merely holds hints about it.
CREATE TABLE work_units (
    id                  uuid        PRIMARY KEY,
    tenant              text        NOT NULL,
    state               text        NOT NULL CHECK (state IN
        ('queued', 'running', 'waiting', 'succeeded', 'failed', 'cancelled', 'timed_out')),
    title               text        NOT NULL,
    backend             text        NOT NULL,
    worker              text        NOT NULL DEFAULT '',
    model               text        NOT NULL DEFAULT '',
    queue               text        NOT NULL,
    priority            smallint    NOT NULL CHECK (priority BETWEEN 0 AND 9),
    labels              jsonb       NOT NULL DEFAULT '{}',

    prompt              text        NOT NULL,
    system_prompt       text        NOT NULL DEFAULT '',
    payload             json        NOT NULL, -- json, not jsonb: numbers and key order stay as they were sent
    working_directory   text        NOT NULL DEFAULT '',
    output_schema       json,
    missing_key         text        NOT NULL CHECK (missing_key IN ('fail', 'note')),

    max_turns           integer     NOT NULL DEFAULT 0,
    max_cost_usd        double precision,
    max_retries         integer,
    timeout             double precision NOT NULL CHECK (timeout > 0),      -- seconds, each run
    idle_timeout        double precision NOT NULL CHECK (idle_timeout > 0), -- seconds without output
    not_before          timestamptz,
    deadline            timestamptz,

    run_count           integer     NOT NULL DEFAULT 0, -- the number of the newest run: the fence
    failures            integer     NOT NULL DEFAULT 0, -- runs that failed: these use up max_retries
    losses              integer     NOT NULL DEFAULT 0, -- runs whose worker process died or shut down
    waits               integer     NOT NULL DEFAULT 0, -- runs that met a rate limit
    crashes             integer     NOT NULL DEFAULT 0, -- runs whose own process died
    resume_session      text,                           -- the session the next run goes on with
    session_cost_usd    double precision NOT NULL DEFAULT 0, -- what that session has cost so far

    dispatch            integer     NOT NULL DEFAULT 1, -- the number of the newest bell
    check_at            timestamptz NOT NULL,           -- when to look whether a bell is still on its way
    cancel_requested_at timestamptz,

    summary             text,                           -- the start of the output, for lists
    final_run           uuid,                           -- the run whose result is the unit's
    error_class         text,
    error_message       text,
    cost_usd            double precision NOT NULL DEFAULT 0, -- of all runs

    created_at          timestamptz NOT NULL,
    started_at          timestamptz,
    finished_at         timestamptz,
    idempotency_key     text,
    body_hash           bytea,

    CONSTRAINT finished_when_final CHECK
        ((state IN ('succeeded', 'failed', 'cancelled', 'timed_out')) = (finished_at IS NOT NULL)),
    CONSTRAINT started_when_running CHECK (state <> 'running' OR started_at IS NOT NULL),
    CONSTRAINT error_when_failed CHECK (state NOT IN ('failed', 'timed_out') OR error_class IS NOT NULL)
);

CREATE UNIQUE INDEX work_units_idempotency ON work_units (tenant, idempotency_key) WHERE idempotency_key IS NOT NULL;
-- Lists are newest first; ids are UUIDv7, so their order is the order of arrival.
CREATE INDEX work_units_newest ON work_units (tenant, id DESC);
CREATE INDEX work_units_by_state ON work_units (tenant, state, id DESC);
CREATE INDEX work_units_by_backend ON work_units (tenant, backend, id DESC);
CREATE INDEX work_units_by_label ON work_units USING gin (labels jsonb_path_ops);
CREATE INDEX work_units_search ON work_units USING gin (title gin_trgm_ops);
-- What the reconciler asks every second; both stay as small as the backlog.
CREATE INDEX work_units_unchecked ON work_units (check_at) WHERE state = 'queued';
CREATE INDEX work_units_deadline ON work_units (deadline) WHERE deadline IS NOT NULL AND state IN ('queued', 'waiting');
-- What worker processes ask when Redis is away.
CREATE INDEX work_units_lane ON work_units (queue, backend, priority DESC, id) WHERE state = 'queued';

-- One row per worker process. Its lease is on this database's clock.
CREATE TABLE worker_processes (
    id          uuid        PRIMARY KEY,
    hostname    text        NOT NULL,
    pid         integer     NOT NULL,
    identity    text        NOT NULL DEFAULT '', -- boot, pid namespace, pid and start time: says whether it lives
    version     text        NOT NULL,
    slots       integer     NOT NULL,
    running     integer     NOT NULL DEFAULT 0,
    queues      text[]      NOT NULL,
    backends    jsonb       NOT NULL, -- [{"name","available","detail"}]
    started_at  timestamptz NOT NULL,
    beat_at     timestamptz NOT NULL,
    lease_until timestamptz NOT NULL,
    stopped_at  timestamptz
);
CREATE INDEX worker_processes_live ON worker_processes (lease_until) WHERE stopped_at IS NULL;

-- One row per attempt at a unit. Rows are added and closed, never rewritten.
CREATE TABLE worker_runs (
    id              uuid        PRIMARY KEY,
    tenant          text        NOT NULL,
    unit_id         uuid        NOT NULL REFERENCES work_units ON DELETE CASCADE,
    attempt         integer     NOT NULL CHECK (attempt > 0),
    worker_type     text        NOT NULL, -- the backend
    worker_process  uuid,
    status          text        NOT NULL CHECK (status IN
        ('running', 'succeeded', 'failed', 'cancelled', 'timed_out', 'lost', 'fenced', 'released')),
    live_status     text,                 -- what it is doing now, or did last
    model           text,
    rendered_prompt text,
    result          text,                 -- partial unless the run succeeded
    error_class     text,
    error_message   text,
    session_id      text,
    num_turns       integer     NOT NULL DEFAULT 0,
    tool_calls      integer     NOT NULL DEFAULT 0,
    input_tokens    bigint      NOT NULL DEFAULT 0,
    output_tokens   bigint      NOT NULL DEFAULT 0,
    cache_read_tokens     bigint NOT NULL DEFAULT 0,
    cache_creation_tokens bigint NOT NULL DEFAULT 0,
    total_cost_usd  double precision,
    cost_incomplete boolean     NOT NULL DEFAULT false,
    duration_ms     bigint      NOT NULL DEFAULT 0,
    duration_api_ms bigint      NOT NULL DEFAULT 0,
    execution_time  double precision NOT NULL DEFAULT 0, -- seconds, from claim to finish
    output_files    jsonb       NOT NULL DEFAULT '[]',
    definition      jsonb,                -- the worker definition this run used
    started_at      timestamptz NOT NULL,
    completed_at    timestamptz,
    given_up        boolean     NOT NULL DEFAULT false, -- closed as lost by somebody else: it may still come back

    CONSTRAINT one_run_per_attempt UNIQUE (unit_id, attempt),
    CONSTRAINT completed_when_over CHECK ((status = 'running') = (completed_at IS NULL))
);
CREATE UNIQUE INDEX worker_runs_one_live ON worker_runs (unit_id) WHERE status = 'running';
CREATE INDEX worker_runs_owned ON worker_runs (worker_process) WHERE status = 'running';
CREATE INDEX worker_runs_newest ON worker_runs (tenant, id DESC);
CREATE INDEX worker_runs_by_status ON worker_runs (tenant, status, id DESC);

-- What agents did. While a run goes on its steps come in chunks; at its end
-- they become one gzip blob. Lists never read either table.
CREATE TABLE transcripts (
    run_id uuid    PRIMARY KEY REFERENCES worker_runs ON DELETE CASCADE,
    steps  integer NOT NULL,
    blob   bytea   NOT NULL
);
ALTER TABLE transcripts ALTER COLUMN blob SET STORAGE EXTERNAL; -- it is compressed already

CREATE TABLE transcript_chunks (
    seq    bigint  GENERATED ALWAYS AS IDENTITY,
    run_id uuid    NOT NULL REFERENCES worker_runs ON DELETE CASCADE,
    body   bytea   NOT NULL, -- JSON lines; a later step replaces an earlier one of its number
    PRIMARY KEY (run_id, seq)
);

-- Small facts about the installation, such as the epoch that tells whether
-- Redis still remembers what it was told.
CREATE TABLE settings (
    name  text PRIMARY KEY,
    value text NOT NULL
);
