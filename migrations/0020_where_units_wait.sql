-- +goose Up
-- A unit of the batch lane that runs live after all, or with the answer of a
-- provider's batch: it does not wait for a provider's batch again.
ALTER TABLE work_units ADD COLUMN runs_live boolean NOT NULL DEFAULT false;

-- Every combination of state, held, lane, provider_batch and runs_live that a
-- unit may be in; units that are over may keep what they had.
--   held      queued, of a batch, which has not let it go. One that was at a
--             provider's batch runs live when it is let go.
--   queued    it may run; in the batch lane with an answer or live after all
--   waiting   in the batch lane: to be packed, or packed (provider_batch)
--   running   never held
-- No statement can make a unit wait for a provider's batch that was over before.
-- Worker processes of the version before know no runs_live. What they would make
-- of a unit otherwise is refused, and a process of this version does it.
ALTER TABLE work_units ADD CONSTRAINT where_it_waits CHECK (
    CASE state
        WHEN 'queued'  THEN NOT held OR batch_id IS NOT NULL AND (provider_batch IS NULL OR runs_live)
        WHEN 'waiting' THEN NOT held AND lane = 'batch' AND NOT runs_live
        WHEN 'running' THEN NOT held
        ELSE true
    END AND (lane = 'batch' OR provider_batch IS NULL AND NOT runs_live)) NOT VALID;

-- The provider keeps no key of ours, so remote_id may be another's batch: it is
-- not cancelled on suspicion.
ALTER TABLE provider_batches ADD COLUMN guessed boolean NOT NULL DEFAULT false;

-- All units that sum a batch up: a batch that is begun again makes another.
ALTER TABLE batches ADD COLUMN syntheses uuid[] NOT NULL DEFAULT '{}';
