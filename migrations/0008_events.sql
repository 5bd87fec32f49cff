-- +goose Up
-- Who follows units and runs asks what has changed since they looked last. The
-- answer is the transaction that changed a row: whether a reader has seen it
-- can be told for certain, whatever order transactions commit in.
ALTER TABLE work_units ADD COLUMN changed xid8 NOT NULL DEFAULT '1';
ALTER TABLE work_units ALTER COLUMN changed SET DEFAULT pg_current_xact_id();
CREATE INDEX work_units_changed ON work_units (changed);
ALTER TABLE worker_runs ADD COLUMN changed xid8 NOT NULL DEFAULT '1';
ALTER TABLE worker_runs ALTER COLUMN changed SET DEFAULT pg_current_xact_id();

-- +goose StatementBegin
CREATE FUNCTION note_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.changed := pg_current_xact_id();
    RETURN NEW;
END $$;
-- +goose StatementEnd
-- Not when only a bell is looked after: nobody sees that.
CREATE TRIGGER note_change BEFORE UPDATE OF state, cancel_requested_at, not_before, cost_usd ON work_units
    FOR EACH ROW EXECUTE FUNCTION note_change();
CREATE TRIGGER note_change BEFORE UPDATE ON worker_runs
    FOR EACH ROW EXECUTE FUNCTION note_change();

-- The revision of a transcript that a run or a chunk brings it to. A run that
-- an older version wrote has none; its chunks are always read.
ALTER TABLE worker_runs ADD COLUMN rev integer;
ALTER TABLE transcript_chunks ADD COLUMN rev integer NOT NULL DEFAULT 2147483647;
ALTER TABLE transcript_chunks DROP CONSTRAINT transcript_chunks_pkey;
ALTER TABLE transcript_chunks ADD PRIMARY KEY (run_id, rev, seq);
