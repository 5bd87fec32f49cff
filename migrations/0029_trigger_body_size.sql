-- +goose Up
-- The largest body that a trigger takes, in bytes. 25 MB is the most that GitHub sends.
ALTER TABLE triggers ADD COLUMN max_body_bytes integer NOT NULL DEFAULT 1048576;
ALTER TABLE triggers ADD CONSTRAINT max_body_bytes_in_range CHECK (max_body_bytes BETWEEN 1 AND 26214400) NOT VALID;
ALTER TABLE triggers VALIDATE CONSTRAINT max_body_bytes_in_range;
