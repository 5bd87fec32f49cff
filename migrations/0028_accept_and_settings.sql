-- +goose Up
-- What a result must meet, as the caller gave it; whether an agent reads the
-- settings that lie in its directory; MCP servers that it gets, by name.
ALTER TABLE work_units
    ADD COLUMN accept           json,
    ADD COLUMN project_settings text CHECK (project_settings IN ('ignore', 'read')),
    ADD COLUMN mcp_servers      jsonb;
