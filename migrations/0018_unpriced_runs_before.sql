-- +goose NO TRANSACTION
-- +goose Up
-- The runs that ended before anybody counted. The mock backend has always told.
UPDATE work_units u SET unpriced_runs = old.runs
FROM (SELECT unit_id, count(*) AS runs FROM worker_runs
    WHERE status <> 'running' AND (total_cost_usd IS NULL OR cost_incomplete) AND worker_type <> 'mock' GROUP BY unit_id) AS old
WHERE u.id = old.unit_id AND u.unpriced_runs = 0;
