-- +goose Up
-- Units that wait for a provider's batch which is over: a pause and a resume of
-- their batch had left them so.
UPDATE work_units u SET state = 'queued', runs_live = true, held = u.batch_id IS NOT NULL, dispatch = dispatch + 1,
    check_at = CASE WHEN u.batch_id IS NULL THEN clock_timestamp() ELSE 'infinity' END
WHERE state = 'waiting' AND provider_batch IS NOT NULL
    AND NOT EXISTS (SELECT FROM provider_batches b WHERE b.id = u.provider_batch AND b.finished_at IS NULL);
-- Units that were at a provider's batch before they were held.
UPDATE work_units SET runs_live = true WHERE held AND state = 'queued' AND provider_batch IS NOT NULL;
UPDATE batches SET syntheses = ARRAY[synthesis_unit] WHERE synthesis_unit IS NOT NULL;

ALTER TABLE work_units VALIDATE CONSTRAINT where_it_waits;
