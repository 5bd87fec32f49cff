-- +goose Up

-- Files that callers uploaded and that runs left behind. The bytes are in the
-- file store under the id; a row is here only once they are all there.
CREATE TABLE files (
    id         uuid        PRIMARY KEY,
    tenant     text        NOT NULL,
    run_id     uuid        REFERENCES worker_runs ON DELETE SET NULL, -- the run that left it; none: an upload
    filename   text        NOT NULL,
    bytes      bigint      NOT NULL CHECK (bytes >= 0),
    media_type text        NOT NULL,
    sha256     bytea       NOT NULL CHECK (length(sha256) = 32),
    created_at timestamptz NOT NULL
);
CREATE INDEX files_newest ON files (tenant, id DESC);
CREATE INDEX files_of_run ON files (run_id) WHERE run_id IS NOT NULL;

-- Bytes that no row of files stands for: about to be written, or to be
-- removed. What is still here when its time has come is removed.
CREATE TABLE stray_blobs (
    id        uuid        PRIMARY KEY, -- as in files
    remove_at timestamptz NOT NULL
);
CREATE INDEX stray_blobs_due ON stray_blobs (remove_at);

ALTER TABLE work_units ADD COLUMN files jsonb NOT NULL DEFAULT '[]'; -- as they were named

-- The uploaded files that a unit uses, whichever way it named them.
CREATE TABLE unit_files (
    unit_id uuid NOT NULL REFERENCES work_units ON DELETE CASCADE,
    file_id uuid NOT NULL REFERENCES files ON DELETE CASCADE,
    PRIMARY KEY (unit_id, file_id)
);
CREATE INDEX unit_files_by_file ON unit_files (file_id);
