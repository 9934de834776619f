-- A renamed stage keeps its number, and with it all results, payments and events. These statements are for the other case: the
-- new name was in use before the rename was declared. What the newcomer (:stage) has done is moved to the original stage
-- (:into), each in one statement over the whole table.

-- name: rename_stage
UPDATE holdfast_stages SET name = :name, formerly = :formerly WHERE id = :stage;

-- name: rename_before
UPDATE holdfast_stages SET after = :after WHERE id = :stage;

-- name: rename_resource
-- The limits of a stage are named after it.
UPDATE holdfast_resources SET name = :name
WHERE name = :former AND NOT EXISTS (SELECT 1 FROM holdfast_resources r WHERE r.name = :name);

-- name: leases_of_stage
SELECT COUNT(*) FROM holdfast_leases WHERE stage = :stage;

-- name: results_of_both
SELECT COUNT(*) FROM holdfast_outcomes o JOIN holdfast_outcomes b ON b.item = o.item AND b.stage = :into WHERE o.stage = :stage;

-- name: join_waiting
INSERT INTO holdfast_waiting (stage, priority, item, attempts, alone, rerun, since)
SELECT :into, w.priority, w.item, w.attempts, w.alone, w.rerun, w.since FROM holdfast_waiting w WHERE w.stage = :stage
  AND NOT EXISTS (SELECT 1 FROM holdfast_outcomes o WHERE o.item = w.item AND o.stage = :into)
  AND NOT EXISTS (SELECT 1 FROM holdfast_delayed d WHERE d.item = w.item AND d.stage = :into)
  AND NOT EXISTS (SELECT 1 FROM holdfast_holds h WHERE h.item = w.item AND h.stage = :into)
ON CONFLICT (stage, priority, item) DO NOTHING
RETURNING item;

-- name: join_delayed
-- As waiting: delayed work is tried again sooner.
INSERT INTO holdfast_waiting (stage, priority, item, attempts, alone, rerun, since)
SELECT :into, i.priority, d.item, d.attempts, d.alone, d.rerun, :now FROM holdfast_delayed d JOIN holdfast_items i ON i.id = d.item
WHERE d.stage = :stage
  AND NOT EXISTS (SELECT 1 FROM holdfast_outcomes o WHERE o.item = d.item AND o.stage = :into)
  AND NOT EXISTS (SELECT 1 FROM holdfast_delayed b WHERE b.item = d.item AND b.stage = :into)
  AND NOT EXISTS (SELECT 1 FROM holdfast_holds h WHERE h.item = d.item AND h.stage = :into)
ON CONFLICT (stage, priority, item) DO NOTHING
RETURNING item;

-- name: leave_waiting
DELETE FROM holdfast_waiting WHERE stage = :stage;

-- name: leave_delayed
DELETE FROM holdfast_delayed WHERE stage = :stage;

-- name: leave_holds
DELETE FROM holdfast_holds WHERE stage = :stage;

-- name: join_inputs
-- Results made from those of the newcomer count as unchanged: input hashes contain the number of the stage.
UPDATE holdfast_outcomes SET input_hash = NULL
WHERE stage {in after} AND item IN (SELECT o.item FROM holdfast_outcomes o WHERE o.stage = :stage);

-- name: join_outcomes
UPDATE holdfast_outcomes SET stage = :into WHERE stage = :stage;

-- name: join_memos
UPDATE holdfast_memos SET stage = :into WHERE stage = :stage
  AND NOT EXISTS (SELECT 1 FROM holdfast_memos b WHERE b.stage = :into AND b.item = holdfast_memos.item AND b.name = holdfast_memos.name);

-- name: leave_memos
DELETE FROM holdfast_memos WHERE stage = :stage;

-- name: join_calls
UPDATE holdfast_calls SET stage = :into WHERE stage = :stage;

-- name: join_money
INSERT INTO holdfast_money (slot, stage, resource, model, day, payments, amount, doubts, in_doubt, tokens_in, tokens_out, tokens_cached, tokens_reasoning)
SELECT slot, :into, resource, model, day, payments, amount, doubts, in_doubt, tokens_in, tokens_out, tokens_cached, tokens_reasoning
FROM holdfast_money WHERE stage = :stage
ON CONFLICT (slot, stage, resource, model, day) DO UPDATE SET payments = {add holdfast_money.payments},
    amount = {add holdfast_money.amount}, doubts = {add holdfast_money.doubts},
    in_doubt = {add holdfast_money.in_doubt}, tokens_in = {add holdfast_money.tokens_in},
    tokens_out = {add holdfast_money.tokens_out},
    tokens_cached = {add holdfast_money.tokens_cached},
    tokens_reasoning = {add holdfast_money.tokens_reasoning};

-- name: leave_money
DELETE FROM holdfast_money WHERE stage = :stage;

-- name: join_counts
INSERT INTO holdfast_counts (slot, stage, state, bucket, n, total_us, most_us)
SELECT slot, :into, state, bucket, n, total_us, most_us FROM holdfast_counts
WHERE stage = :stage AND state NOT IN ('pending', 'retry_later', 'in_progress', 'on_hold')
ON CONFLICT (slot, stage, state, bucket) DO UPDATE SET n = {add holdfast_counts.n},
    total_us = {add holdfast_counts.total_us},
    most_us = CASE WHEN excluded.most_us > holdfast_counts.most_us THEN excluded.most_us ELSE holdfast_counts.most_us END;

-- name: leave_counts
DELETE FROM holdfast_counts WHERE stage = :stage;

-- name: join_versions
INSERT INTO holdfast_versions (slot, stage, version, type, n)
SELECT slot, :into, version, type, n FROM holdfast_versions WHERE stage = :stage
ON CONFLICT (slot, stage, version, type) DO UPDATE SET n = {add holdfast_versions.n};

-- name: leave_versions
DELETE FROM holdfast_versions WHERE stage = :stage;

-- name: join_error_groups
INSERT INTO holdfast_error_groups (slot, stage, id, kind, place, message, n, amount, first_seen, last_seen, item)
SELECT slot, :into, id, kind, place, message, n, amount, first_seen, last_seen, item FROM holdfast_error_groups WHERE stage = :stage
ON CONFLICT (slot, stage, id) DO UPDATE SET n = {add holdfast_error_groups.n},
    amount = {add holdfast_error_groups.amount}, last_seen = excluded.last_seen, item = excluded.item;

-- name: leave_error_groups
DELETE FROM holdfast_error_groups WHERE stage = :stage;

-- name: join_events
UPDATE holdfast_events SET stage = :into WHERE stage = :stage;

-- name: retire_stage
-- The row stays: a live worker may still offer this stage, by its number.
UPDATE holdfast_stages SET name = :name, active = 0, backfill_next = NULL, hold_next = NULL WHERE id = :stage;
