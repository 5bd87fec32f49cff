-- +goose Up
-- What a result must meet, as the caller gave it; whether an agent reads the
-- settings that lie in its directory; MCP servers that it gets, by name.
ALTER TABLE work_units
    ADD COLUMN accept           json,
    ADD COLUMN project_settings text,
    ADD COLUMN mcp_servers      jsonb;
ALTER TABLE work_units ADD CONSTRAINT project_settings_known CHECK (project_settings IN ('ignore', 'read')) NOT VALID;
ALTER TABLE work_units VALIDATE CONSTRAINT project_settings_known;
