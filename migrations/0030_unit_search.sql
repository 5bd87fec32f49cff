-- +goose Up
-- What units are searched by, and what never changes. A unit's own row is updated
-- several times, and each update writes all the indexes of that row.
CREATE TABLE unit_search (
    unit_id    uuid PRIMARY KEY,
    tenant     text NOT NULL,
    backend    text NOT NULL,
    created_at timestamptz NOT NULL,
    title      text NOT NULL,
    labels     jsonb NOT NULL
);
-- +goose StatementBegin
CREATE FUNCTION enter_search() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO unit_search (unit_id, tenant, backend, created_at, title, labels)
    SELECT id, tenant, backend, created_at, title, labels FROM fresh ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE FUNCTION leave_search() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM unit_search s USING gone WHERE s.unit_id = gone.id;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER enter_search AFTER INSERT ON work_units REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION enter_search();
CREATE TRIGGER leave_search AFTER DELETE ON work_units REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION leave_search();
-- Every unit is written three times: what that leaves behind is cleared away sooner.
ALTER TABLE work_units SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.02);
ALTER TABLE worker_runs SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.02);
