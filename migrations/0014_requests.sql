-- +goose Up
-- A unit may be one call of a model API, as its caller wrote it, in place of a
-- prompt. What the API answered with is kept beside the answer.
ALTER TABLE work_units ADD COLUMN request json; -- {"endpoint","body"}
ALTER TABLE work_units ADD CONSTRAINT request_or_prompt CHECK (request IS NULL OR prompt = '');
ALTER TABLE worker_runs ADD COLUMN http_status smallint NOT NULL DEFAULT 0; -- of the API's answer to a call
ALTER TABLE worker_runs ADD COLUMN request_id text NOT NULL DEFAULT '';     -- the API's own

-- Files that came through /v1/files say what they are for.
ALTER TABLE files ADD COLUMN purpose text NOT NULL DEFAULT '';
ALTER TABLE files ADD COLUMN expires_at timestamptz;
CREATE INDEX files_for ON files (tenant, id DESC) WHERE purpose <> '';
CREATE INDEX files_expiring ON files (expires_at) WHERE expires_at IS NOT NULL;

-- The output and error files of an OpenAI-compatible batch are read from the
-- ledger. What is kept of them is their sizes, once they do not change any more.
ALTER TABLE batches ADD COLUMN file_sizes jsonb;                           -- {"round","output","error"} in bytes
ALTER TABLE batches ADD COLUMN deleted_files text[] NOT NULL DEFAULT '{}'; -- output, error
ALTER TABLE batches ADD COLUMN deleted_at timestamptz;                     -- nobody sees it any more; it is removed bit by bit
CREATE INDEX batches_deleted ON batches (deleted_at) WHERE deleted_at IS NOT NULL;
