-- +goose Up
-- A file that goes leaves a note in stray_blobs, whichever statement removes it: its bytes are removed next.
-- +goose StatementBegin
CREATE FUNCTION note_stray_blob() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO stray_blobs (id, remove_at) VALUES (OLD.id, clock_timestamp())
    ON CONFLICT (id) DO UPDATE SET remove_at = excluded.remove_at;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER note_stray_blob AFTER DELETE ON files FOR EACH ROW EXECUTE FUNCTION note_stray_blob();

-- Output files belong to their run, and go with it.
ALTER TABLE files DROP CONSTRAINT files_run_id_fkey;
ALTER TABLE files ADD CONSTRAINT files_run_id_fkey FOREIGN KEY (run_id) REFERENCES worker_runs (id) ON DELETE CASCADE NOT VALID;

ALTER TABLE transcripts ADD COLUMN removed_at timestamptz; -- when the steps were removed; the blob is empty from then on
ALTER TABLE worker_processes ADD COLUMN blocked text NOT NULL DEFAULT ''; -- why it takes no units at all; empty: it takes them
