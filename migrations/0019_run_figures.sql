-- +goose Up
-- An agent that counts the cost of its session, over all runs that went on with
-- it, tells the sum. The run's own cost is the difference from the sum that the
-- run before told, also when that one's end comes later.
ALTER TABLE worker_runs ADD COLUMN session_total_usd double precision;
ALTER TABLE worker_runs ADD COLUMN session_resumed boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN worker_runs.session_total_usd IS
    'What the agent says that its session has cost until the end of this run, in US dollars; null: it did not say, or counts by the run.';
COMMENT ON COLUMN worker_runs.session_resumed IS 'The run went on with the session of an earlier run.';
ALTER TABLE worker_runs ADD COLUMN implausible text[] NOT NULL DEFAULT '{}';
COMMENT ON COLUMN worker_runs.implausible IS
    'Figures that the backend told and that cannot be true, by their names. They are not kept: total_cost_usd is null then, others are 0.';
