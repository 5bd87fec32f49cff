-- +goose Up
-- A trigger makes a unit of each webhook, or a batch of the list in it.
ALTER TABLE triggers ALTER COLUMN unit DROP NOT NULL;
ALTER TABLE triggers ADD COLUMN batch json; -- what its batches are asked for: as POST /batches, with items, an expression
ALTER TABLE triggers ADD CONSTRAINT unit_or_batch CHECK (num_nonnulls(unit, batch) = 1);
ALTER TABLE trigger_deliveries ADD COLUMN batch_id uuid;
ALTER TABLE trigger_deliveries DROP CONSTRAINT unit_when_accepted;
ALTER TABLE trigger_deliveries ADD CONSTRAINT made_when_accepted CHECK (num_nonnulls(unit_id, batch_id) = (outcome = 'accepted')::integer);
ALTER TABLE batches ADD COLUMN items json; -- that came in a webhook, until its units are made

-- Units of a batch that begin with the same words are let go one after another:
-- the provider then still has these words in its prompt cache.
ALTER TABLE work_units ADD COLUMN turn integer NOT NULL DEFAULT 0; -- the line of the first unit of its batch that begins so
DROP INDEX work_units_held;
CREATE INDEX work_units_held ON work_units (batch_id, turn, id) WHERE held AND state = 'queued';
