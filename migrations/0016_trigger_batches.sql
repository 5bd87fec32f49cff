-- +goose Up
-- A trigger makes a unit of each webhook, or a batch of the list in it.
ALTER TABLE triggers ALTER COLUMN unit DROP NOT NULL;
ALTER TABLE triggers ADD COLUMN batch json; -- what its batches are asked for: as POST /batches, with items, an expression
ALTER TABLE triggers ADD CONSTRAINT unit_or_batch CHECK (num_nonnulls(unit, batch) = 1);
ALTER TABLE trigger_deliveries ADD COLUMN batch_id uuid;
ALTER TABLE trigger_deliveries DROP CONSTRAINT unit_when_accepted;
ALTER TABLE trigger_deliveries ADD CONSTRAINT made_when_accepted CHECK (num_nonnulls(unit_id, batch_id) = (outcome = 'accepted')::integer);
ALTER TABLE batches ADD COLUMN items json; -- that came in a webhook, until its units are made
